# SPDX-License-Identifier: Apache-2.0
"""What runs write for themselves: journals, measurements, the cache of times."""

from pathlib import Path
from typing import Any

import torch
from target import target, tried


def journal_seeds(folder: Path) -> None:
    from gossamer.pruning.calibration.journal import DiskJournal
    from gossamer.pruning.solvers import LayerSolution
    from gossamer.training.run_files import MetricsFile

    torch.manual_seed(0)
    mask = torch.rand(6, 10) > 0.5
    solution = LayerSolution(torch.randn(6, 10) * mask, mask, ("a note",))
    DiskJournal(folder / "j", {"model": "m"}).note("layer", solution)
    metrics = MetricsFile(folder / "j" / "metrics.jsonl")
    for step in range(3):
        metrics.write({"kind": "step", "step": step, "loss": 1.5})
    metrics.close()


@target(
    "journal",
    journal_seeds,
    "pruning/calibration/journal.py:recall _check_key check_same_run _held _solution",
    "training/run_files.py:read_metrics",
)
def read_journal(folder: Path) -> object:
    from gossamer.pruning.calibration.journal import DiskJournal
    from gossamer.training.run_files import read_metrics

    if (folder / "metrics.jsonl").exists():
        read_metrics(folder / "metrics.jsonl")
    return DiskJournal(folder, {"model": "m"}).recall("layer")


def search_seeds(folder: Path) -> None:
    from gossamer.search import Point, Trial
    from gossamer.search.forecast import Forecasts, MaskForecast
    from gossamer.search.records import write_record

    (folder / "s").mkdir()
    point = Point("a", "fp32", 80.0, float("inf"), 1.5, 2.0, 1000)
    write_record(folder / "s" / "trial.json", Trial("a", 1.0, (point, point), 10))
    write_record(folder / "s" / "forecasts.json", Forecasts(1.0, (MaskForecast("2:4", 1.0, 0.5),)))
    write_record(folder / "s" / "search.json", {"model": "m", "data": "d"})


@target("search", search_seeds, "search/records.py:read_record")
def read_search(folder: Path) -> object:
    from gossamer.search import Trial
    from gossamer.search.forecast import Forecasts
    from gossamer.search.records import read_record

    kinds: dict[str, Any] = {"trial": Trial, "forecasts": Forecasts, "search": dict[str, str]}
    return [tried(lambda n=n, k=k: read_record(folder / f"{n}.json", k)) for n, k in kinds.items()]


def cost_seeds(folder: Path) -> None:
    from gossamer.ops.timing import Race
    from gossamer.running.choice import CostKey, CostTable

    (folder / "c").mkdir()
    table = CostTable(folder / "c" / "kernels.json")
    for tokens in (1, 16):
        table.put([CostKey("panel", 64, 64, "2:4", 0.5, tokens, 1)], Race((2.0, 1.0)))
    table.save()


@target("cost-table", cost_seeds, "running/choice.py:_read get")
def read_costs(folder: Path) -> object:
    from gossamer.running.choice import CostKey, CostTable

    table = CostTable(folder / "kernels.json")
    found = table.get([CostKey("panel", 64, 64, "2:4", 0.5, 16, 1)])
    return None if found is None else found.us
