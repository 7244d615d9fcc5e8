# SPDX-License-Identifier: Apache-2.0
"""ResNet-20 and its Early-Bird ticket at half of the channels: outputs, bytes, accuracy, latency.

    python benchmarks/early_bird_resnet.py CIFAR WORK [--steps 700] [--batch 1] [--seconds 6]
        [--json FILE] [--peers DIR] [--train-only]

CIFAR is the file that `support/cifar.py` unpacks. Both networks are trained from scratch by
`gossamer train` with the same steps, learning rates and images (`support/resnet20_dense.yaml`,
`support/resnet20_early_bird.yaml`); the ticket is cut out in the middle of its run and trains on.
WORK holds both artifacts; a killed run goes on when the command is given again. The outputs before
and after the cut are compared in the run itself. Then a race of both in all engines, in one loop,
and the accuracy of each on the 10 000 test images.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from rich.table import Table

import gossamer
from gossamer.training.run_files import read_metrics
from support.cifar import accuracy, load, normalised
from support.network_race import Contenders
from support.options import give, machine, parser, progress
from support.resnets import ResNet20

RECIPES = {"whole": "resnet20_dense.yaml", "slim": "resnet20_early_bird.yaml"}
CALIBRATION = 256
MOST_APART = 1e-6


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("cifar", type=Path)
    options.add_argument("work", type=Path)
    options.add_argument("--steps", type=int, default=700)
    options.add_argument("--batch", type=int, default=1)
    options.add_argument("--train-only", action="store_true")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    for name in RECIPES:
        train(given, name)
    if given.train_only:
        return
    data, rows = load(given.cifar), []
    for name in RECIPES:
        model = gossamer.load(given.work / name, ResNet20()).eval()
        rows += measured(name, model, data, given)
    cut = found(given, "slim", "compaction")
    trained = {name: found(given, name, "evaluation") for name in RECIPES}
    ticket = found(given, "slim", "schedule")
    is_met = cut["outputs_apart"] <= MOST_APART
    text = f"outputs {cut['outputs_apart']:.1e} apart after the cut (goal {MOST_APART:g})"
    document = {
        "machine": machine(),
        "settings": {key: str(value) for key, value in vars(given).items()},
        "rows": rows,
        "cut": cut,
        "ticket": ticket,
        "steps_ms": found(given, "slim", "compaction-effect"),
        "training": trained,
        "goals": [{"name": "same outputs", "text": text, "is_met": is_met}],
    }
    drawn = f"ticket at step {ticket['step']}, distance {ticket['distance']:.3f}"
    sizes = f"{cut['weights']:,} parameters became {cut['values']:,}"
    give(given, document, shown(rows), f"{drawn}; {sizes}; {text}")


def train(given, name):
    """Train one network, or further, where it is not there yet."""
    folder = given.work / name
    if (folder / "manifest.json").exists():
        return
    given.work.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).resolve().parent
    command = [
        *(str(Path(sys.executable).parent / "gossamer"), "train"),
        *(str(here / "support" / RECIPES[name]), "--model", "support.cifar_task:fresh_resnet20"),
        *("-o", str(folder), "--set", f"steps={given.steps}"),
    ]
    if folder.with_suffix(".run").exists():
        command.append("--resume")
    progress(" ".join(command))
    environment = {**os.environ, "GOSSAMER_CIFAR": str(given.cifar), "PYTHONPATH": str(here)}
    subprocess.run(command, check=True, env=environment)  # noqa: S603


def found(given, name, kind):
    """The last record of a kind in the metrics of a run."""
    records = read_metrics(given.work / f"{name}.run" / "metrics.jsonl")
    return [record for record in records if record["kind"] == kind][-1]


def measured(name, model, data, given):
    """Time and accuracy of one network in every engine."""
    calibration = normalised(data.x_train[:CALIBRATION])
    x = normalised(data.x_test[: given.batch])
    with Contenders(model, x, calibration, given.threads, given.peers) as contenders:
        times = contenders.race(given.seconds or 6.0)
        return [
            {
                "network": name,
                "engine": one.engine,
                "precision": one.precision,
                "ms": ms,
                "accuracy": accuracy(one.answer, data.x_test, data.y_test),
                "error": one.error,
            }
            for one, ms in zip(contenders.found, times, strict=True)
        ]


def shown(rows):
    made = Table(title="ResNet-20, CIFAR-10 test images")
    for column in ("network", "engine", "precision", "ms", "x whole", "accuracy %"):
        made.add_column(column, justify="right")
    whole = {(r["engine"], r["precision"]): r["ms"] for r in rows if r["network"] == "whole"}
    for row in rows:
        base = whole.get((row["engine"], row["precision"]))
        made.add_row(
            *(row[key] for key in ("network", "engine", "precision")),
            f"{row['ms']:.3f}",
            "" if base is None else f"{base / row['ms']:.2f}",
            f"{row['accuracy']:.2f}",
        )
    return made


if __name__ == "__main__":
    main()
