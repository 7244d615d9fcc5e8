# SPDX-License-Identifier: Apache-2.0
"""What the shrink benchmarks share: the final race, and the search as a table."""

import copy
import hashlib
import json
import os

import torch

import gossamer
from gossamer.cli.output import table
from gossamer.ops.timing import race
from gossamer.recipes.execute import execute
from gossamer.run.engine_scripts.turn import turn
from gossamer.search.candidates import dense_int8
from gossamer.search.contenders import counted_bytes
from gossamer.search.page import HEAD, rows_of
from gossamer.search.trial import compiled, tensor_bytes
from support.options import progress


def final_race(work, path, engines, seconds, known):
    """One row per model: quality on the data that is reported, ms of one loop of turns, bytes.

    Args:
        work: the search.
        path: the artifact that it took; it runs in int8.
        engines: of other makers, an `EngineContenders`.
        seconds: of the race.
        known: a `Known` of qualities, so that a quiet hour is spent on times alone.
    """
    threads = torch.get_num_threads()
    int8 = copy.deepcopy(work.model)
    execute(dense_int8().recipe, int8)
    shrunk = compiled(gossamer.load(path).eval(), work, "int8")
    ours = {
        "dense fp32": (work.model, counted_bytes(work.model, "fp32")),
        "dense int8": (compiled(int8, work, "int8"), None),
        "shrunk": (shrunk, tensor_bytes(path)),
    }
    rows, watches = [], []
    for name, (model, size) in ours.items():
        rows.append({"name": name, "quality": known.of(name, model), "bytes": size})
        watches.append(_ours(work.timed.call(model), threads))
    for title, precision, model in engines.models(work):
        name, size = f"{title} {precision}", counted_bytes(work.model, precision)
        # In fp32 an engine computes what torch does; only its time is asked for.
        quality = None if precision == "fp32" else known.of(name, model)
        rows.append({"name": name, "quality": quality, "bytes": size})
        watches.append(model.seconds)
    before = os.getloadavg()[0]
    best = race(watches, budget_seconds=seconds, max_rounds=10_000)
    for row, microseconds in zip(rows, best, strict=True):
        row |= {"ms": microseconds / 1e3, "load": before}
    return rows


class Known:
    """Qualities in a file; that of the shrunk model counts for one artifact only."""

    def __init__(self, work, artifact, file):
        self._work, self._file = work, file
        digest = hashlib.sha256((artifact / "manifest.json").read_bytes()).hexdigest()
        self._digest = digest[:16]
        self._found = json.loads(file.read_text()) if file.exists() else {}

    def of(self, name, model):
        """Measured unless it is known."""
        key = f"{name} {self._digest}" if name == "shrunk" else name
        if key not in self._found:
            with torch.inference_mode():
                self._found[key] = self._work.reporting.measure(model)
            self._file.write_text(json.dumps(self._found, indent=1))
            progress(f"{name}: {self._found[key]:.2f}")
        return self._found[key]


def _ours(call, threads):
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
