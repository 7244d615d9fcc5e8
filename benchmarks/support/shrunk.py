# SPDX-License-Identifier: Apache-2.0
"""What the shrink benchmarks share: who takes part in the final race, the race, the search."""

import contextlib
import copy
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import gossamer
from gossamer.cli.shell import table
from gossamer.pruning.calibration.journal import model_digest
from gossamer.running.encoder.arrays import encoder_arrays, find_base
from gossamer.running.rivals import TITLES, EncoderEngine, EngineFailed, find_engine
from gossamer.running.rivals.engine_scripts.turn import turn
from gossamer.runs import execute
from gossamer.runs.sources import tensor_bytes
from gossamer.search.candidates import dense_int8
from gossamer.search.contenders import EngineEncoder, calibration_inputs, counted_bytes
from gossamer.search.page import HEAD, rows_of
from gossamer.search.trial import compiled
from support.options import progress

_MIN_ROUNDS = 5
OURS = "gossamer"
# Engines of this process: texts need not be padded to one length.
HERE = ("torch", OURS)


@dataclass(frozen=True)
class Entry:
    """One model in one engine.

    Attributes:
        model: its name; the same in all engines.
        engine: that runs it.
        precision: fp32 or int8.
        run: called like a transformers model.
        watch: seconds of one turn.
        size: bytes of its numbers.
        zeros: whether weights were taken out.
        key: what it is made of, for qualities that are known.
    """

    model: str
    engine: str
    precision: str
    run: Any
    watch: Callable[[], float]
    size: int
    zeros: bool = False
    key: str = ""

    @property
    def name(self):
        """For people."""
        return f"{self.model}{' shrunk' * self.zeros}, {self.engine} {self.precision}"


def shrunk_entry(name, path, work):
    """An artifact that a search took, on the int8 kernels."""
    run = compiled(gossamer.load(path).eval(), work, "int8")
    digest = hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()
    return Entry(name, OURS, "int8", run, _watch(work, run), tensor_bytes(path), True, digest[:16])


def dense_entries(name, model, work, engines):
    """A dense model in torch (fp32), on our int8 kernels, and in int8 in every other engine."""
    key = model_digest(model)[:16]
    int8 = copy.deepcopy(model)
    execute(dense_int8().recipe, int8)
    with tempfile.TemporaryDirectory() as folder:
        gossamer.save(int8, Path(folder) / "int8")
        written = tensor_bytes(Path(folder) / "int8")
    fast = compiled(int8, work, "int8")
    counted = {precision: counted_bytes(model, precision) for precision in ("fp32", "int8")}
    yield Entry(name, HERE[0], "fp32", model, _watch(work, model), counted["fp32"], key=key)
    yield Entry(name, OURS, "int8", fast, _watch(work, fast), written, key=key)
    for title, run in engines.int8(name, model, work):
        yield Entry(name, title, "int8", run, run.seconds, counted["int8"], key=key)


class Engines(contextlib.ExitStack):
    """Other engines, one process each, that hold int8 of several encoders; a context.

    Args:
        names: of those that are asked, if they are there.
        folder: environments by name.
        threads: of every engine.
    """

    def __init__(self, names, folder, threads):
        super().__init__()
        found = {name: find_engine(name, folder) for name in names}
        self._held = {
            TITLES[name]: self.enter_context(EncoderEngine(name, python, threads))
            for name, python in found.items()
            if python is not None
        }

    def int8(self, name, model, work):
        """(title, model) of every engine that takes it, calibrated on the training texts."""
        arrays = encoder_arrays(*find_base(model), work.tokens)
        inputs = work.timed.arguments["input_ids"], "int8"
        calibration = calibration_inputs(work.texts["training"], work)
        for title, engine in self._held.items():
            try:
                engine.load(name, arrays, *inputs, calibration=calibration)
            except EngineFailed as error:
                progress(str(error))
                continue
            yield title, EngineEncoder(engine, name, work.tokens)

    @property
    def versions(self):
        """By title."""
        return {title: engine.version for title, engine in self._held.items()}


def race(entries, seconds, known):
    """One row per entry: what is known of its quality, and ms, the median of interleaved turns.

    On one thread turns are CPU time; the second answer says how busy the machine was.
    """
    rows = [
        {"model": each.model, "engine": each.engine, "precision": each.precision,
         "zeros": each.zeros, "bytes": each.size, **known.of(each)}
        for each in entries
    ]  # fmt: skip
    before = os.getloadavg()[0]
    turns = all_turns([each.watch for each in entries], seconds)
    busy = {"load before": before, "load after": os.getloadavg()[0], "rounds": len(turns[0])}
    for row, mine in zip(rows, turns, strict=True):
        row |= {"ms": 1e3 * statistics.median(mine), "least_ms": 1e3 * min(mine)}
    return rows, busy


def all_turns(watches, seconds):
    """Seconds of every turn of every watch, after one round that does not count."""
    for watch in watches:
        watch()
    turns = [[] for _ in watches]
    start = time.perf_counter()
    while len(turns[0]) < _MIN_ROUNDS or time.perf_counter() - start < seconds:
        for mine, watch in zip(turns, watches, strict=True):
            mine.append(watch())
    return turns


class Known:
    """Qualities in a file, so that a quiet hour is spent on times alone.

    Args:
        file: of what was measured.
        measures: name -> (entry -> number or numbers; None where it is not asked).
    """

    def __init__(self, file, measures):
        self._file, self._measures = file, measures
        self._found = json.loads(file.read_text()) if file.exists() else {}

    def of(self, entry):
        """Measured unless it is known for these weights in this engine."""
        found = self._found.setdefault(f"{entry.name} {entry.key}", {})
        for name, measure in self._measures.items():
            if name not in found:
                with torch.inference_mode():
                    found[name] = measure(entry)
                self._file.write_text(json.dumps(self._found, indent=1))
                progress(f"{entry.name}: {name} {found[name]}")
        return found


def _watch(work, model):
    call, threads = work.timed.call(model), torch.get_num_threads()

    def once():
        with torch.inference_mode():
            call()

    return lambda: turn(once, threads)


def search_rows(result):
    """Everything that was tried."""
    made = table(*(column if i in (0, 6) else f">{column}" for i, column in enumerate(HEAD)))
    for row in rows_of(result.points, result.chosen, result.front):
        made.add_row(*row)
    return made
