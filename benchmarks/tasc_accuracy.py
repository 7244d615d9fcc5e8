# SPDX-License-Identifier: Apache-2.0
"""Accuracy on Fashion-MNIST of each way to exchange gradients, and how Top-K fills in.

    python benchmarks/tasc_accuracy.py [--data DIR] [--seeds 3] [--steps 2000] [--density 0.05]
        [--methods none tasc ...] [--log FILE] [--union]

An MLP 784-256-256-10, four ranks with batches of 32 in one process (`support/tasc_training.py`).
Runs of a seed see the same batches. With --log, runs that are in FILE already are not done again.
--union instead trains 2, 4, 8 and 16 ranks for a while and counts the entries that Top-K's ranks
send between them, beside those of TASC.
"""

import json
import statistics
from pathlib import Path

import torch
import torch.distributed as dist
from rich.table import Table

from support import fashion, options
from support.tasc_training import BATCH, METHODS, RATES, START, train

RANKS = (2, 4, 8, 16)
LIMIT = 0.5  # points below dense


def arguments():
    made = options.parser("Accuracy of each way to exchange gradients.")
    made.add_argument("--data", help="folder with the four idx files of Fashion-MNIST")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--steps", type=int, default=2000)
    made.add_argument("--density", type=float, default=0.05)
    made.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    made.add_argument("--optimizers", nargs="+", choices=RATES, default=list(RATES))
    made.add_argument("--log", metavar="FILE", help="finished runs, as JSON lines")
    made.add_argument("--union", action="store_true", help="densities for 2 to 16 ranks")
    return made.parse_args()


class Runs:
    """Runs by their settings; those of the log are not done again."""

    def __init__(self, data, log):
        self._data, self._log = data, Path(log) if log else None
        lines = self._log.read_text().splitlines() if self._log and self._log.exists() else []
        self._done = {
            json.dumps(each["settings"]): each["result"] for each in map(json.loads, lines)
        }

    def get(self, **settings):
        """The result of a run."""
        key = json.dumps(settings)
        if key not in self._done:
            options.progress(key)
            self._done[key] = train(self._data, **settings)
            if self._log:
                line = json.dumps({"settings": settings, "result": self._done[key]})
                with self._log.open("a") as file:
                    file.write(line + "\n")
        return self._done[key]


def accuracies(given, runs):
    rows = []
    for method in given.methods:
        for optimizer in given.optimizers:
            got = [
                runs.get(
                    method=method, optimizer=optimizer, seed=seed, steps=given.steps,
                    num_ranks=4, density=given.density,
                )
                for seed in range(given.seeds)
            ]  # fmt: skip
            rows.append({"method": method, "optimizer": optimizer, "runs": got})
    dense = {
        row["optimizer"]: [run["accuracy"] for run in row["runs"]]
        for row in rows
        if row["method"] == "none"
    }
    for row in rows:
        found = [run["accuracy"] for run in row["runs"]]
        row["accuracy"] = statistics.mean(found)
        row["spread"] = (max(found) - min(found)) / 2
        row["train_loss"] = statistics.mean(run["train_loss"] for run in row["runs"])
        row["density"] = statistics.mean(run["density"] for run in row["runs"])
        base = dense.get(row["optimizer"])
        row["lost"] = None if base is None else statistics.mean(base) - row["accuracy"]
    return rows


def union(given, runs):
    """Mean density of what the ranks send between them, behind the dense start."""
    rows = []
    for num_ranks in RANKS:
        row = {"ranks": num_ranks}
        for method in ("topk", "tasc"):
            got = runs.get(
                method=method, optimizer="momentum", seed=0, steps=START + 100,
                num_ranks=num_ranks, density=given.density,
            )  # fmt: skip
            row[method] = got["density"]
        row["independent"] = 1 - (1 - given.density) ** num_ranks
        rows.append(row)
    return rows


def accuracy_table(rows):
    table = Table("exchange", "optimizer", "accuracy", "+-", "lost", "loss", "density", "goal")
    for row in rows:
        goal = ""
        if row["method"].startswith("tasc") and row["lost"] is not None:
            goal = "met" if row["lost"] <= LIMIT else "missed"
        lost = "" if row["lost"] is None else f"{row['lost']:.2f}"
        table.add_row(
            row["method"], row["optimizer"], f"{row['accuracy']:.2f}", f"{row['spread']:.2f}",
            lost, f"{row['train_loss']:.3f}", f"{row['density']:.4f}", goal,
        )  # fmt: skip
    return table


def union_table(rows):
    table = Table("ranks", "Top-K, union", "if independent", "TASC")
    for row in rows:
        cells = (row["topk"], row["independent"], row["tasc"])
        table.add_row(str(row["ranks"]), *(f"{cell:.4f}" for cell in cells))
    return table


def main():
    given = arguments()
    torch.set_num_threads(given.threads)
    # The stock hook of PowerSGD asks for a group; this one has one rank and no network.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    data = fashion.load(given.data)
    runs = Runs(data, given.log)
    rows = union(given, runs) if given.union else accuracies(given, runs)
    document = {
        "machine": options.machine(),
        "data": data.source,
        "steps": given.steps,
        "batch": BATCH,
        "density": given.density,
        "rows": rows,
    }
    options.give(given, document, union_table(rows) if given.union else accuracy_table(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
