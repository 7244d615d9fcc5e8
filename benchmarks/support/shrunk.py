# SPDX-License-Identifier: Apache-2.0
"""What the shrink benchmarks share: the final race, and the search as a table."""

import copy
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


def final_race(work, path, engines, seconds):
    """One row per model: quality on the data that is reported, ms of one loop of turns, bytes.

    Args:
        work: the search.
        path: the artifact that it took; it runs in int8.
        engines: of other makers, an `EngineContenders`.
        seconds: of the race.
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
        with torch.inference_mode():
            quality = work.reporting.measure(model)
        progress(f"{name}: {quality:.2f}")
        rows.append({"name": name, "quality": quality, "bytes": size})
        watches.append(_ours(work.timed.call(model), threads))
    for title, precision, model in engines.models(work):
        quality = work.reporting.measure(model)
        progress(f"{title} {precision}: {quality:.2f}")
        size = counted_bytes(work.model, precision)
        rows.append({"name": f"{title} {precision}", "quality": quality, "bytes": size})
        watches.append(model.seconds)
    before = os.getloadavg()[0]
    best = race(watches, budget_seconds=seconds, max_rounds=10_000)
    for row, microseconds in zip(rows, best, strict=True):
        row |= {"ms": microseconds / 1e3, "load": before}
    return rows


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
