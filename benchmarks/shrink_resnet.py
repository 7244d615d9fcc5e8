# SPDX-License-Identifier: Apache-2.0
"""ResNet-20 on CIFAR-10, pruned while it trains on, then timed and scored in every engine.

    GOSSAMER_DATA=DIR python benchmarks/shrink_resnet.py CIFAR WORK [--sparsity 0.85] [--epochs 12]
        [--budget erk] [--batch 1] [--seconds 6] [--json FILE] [--peers DIR] [--no-training]

CIFAR is the file that `support/cifar.py` unpacks. The trained network of GOSSAMER_DATA is pruned by
`gossamer train` with `support/resnet20_gradual.yaml`, its dense self as teacher; WORK/run holds the
artifact. A killed run goes on where it stopped when the command is given again; about five core
minutes an epoch. Then a race of the artifact, dense and pruned, in all engines, and the accuracy of
each on the 10 000 test images. Goals: within one point of dense, 2x ONNX Runtime fp32, faster than
its int8; in either precision.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from rich.table import Table

import gossamer
from support.cifar import accuracy, load, normalised
from support.network_race import Contenders
from support.options import give, machine, parser, progress
from support.resnets import ResNet20, trained_resnet20

RECIPE = "support/resnet20_gradual.yaml"
MOST_LOST, LEAST_RATIOS = 1.0, {"fp32": 2.0, "int8": 1.0}
CALIBRATION = 256
_EVAL_BATCH = 500


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("cifar", type=Path)
    options.add_argument("work", type=Path)
    options.add_argument("--sparsity", type=float, default=0.85)
    options.add_argument("--epochs", type=float, default=12)
    options.add_argument("--budget", default="erk", choices=("uniform", "half-erk", "erk"))
    options.add_argument("--batch", type=int, default=1)
    options.add_argument(
        "--no-training", action="store_true", help="prune at once: for timing only"
    )
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    data = load(given.cifar)
    dense = trained_resnet20()
    if given.no_training:
        pruned = trained_resnet20()
        gossamer.sparsify(
            pruned, sparsity=given.sparsity, budget=given.budget, ignore=["conv1", "linear"]
        )
    else:
        pruned = gossamer.load(train(given), ResNet20())
    rows = []
    for name, model in (("dense", dense), ("pruned", pruned.eval())):
        rows += measured(name, model, data, given)
    settings = {key: str(value) for key, value in vars(given).items()}
    document = {"machine": machine(), "settings": settings, "rows": rows, "goals": goals(rows)}
    give(given, document, shown(rows), *(f"{g['name']}: {g['text']}" for g in document["goals"]))


def train(given):
    """The artifact; trained first, or further, where it is not there yet."""
    folder = given.work / "run"
    if (folder / "manifest.json").exists():
        return folder
    given.work.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).resolve().parent
    command = [
        *(str(Path(sys.executable).parent / "gossamer"), "train", str(here / RECIPE)),
        *("--model", "support.cifar_task:distilled_resnet20", "-o", str(folder)),
        *("--set", f"sparsity={given.sparsity}", "--set", f"epochs={given.epochs}"),
        *("--set", f"budget={given.budget}"),
    ]
    if folder.with_suffix(".run").exists():
        command.append("--resume")
    progress(" ".join(command))
    environment = {**os.environ, "GOSSAMER_CIFAR": str(given.cifar), "PYTHONPATH": str(here)}
    subprocess.run(command, check=True, env=environment)  # noqa: S603
    return folder


def measured(name, model, data, given):
    """Time and accuracy of one network in every engine."""
    calibration = normalised(data.x_train[:CALIBRATION])
    x = normalised(data.x_test[: given.batch])
    with Contenders(model, x, calibration, given.threads, given.peers) as contenders:
        times = contenders.race(given.seconds or 6.0)
        return [
            {
                "weights": name,
                "engine": one.engine,
                "precision": one.precision,
                "ms": ms,
                "accuracy": accuracy(one.answer, data.x_test, data.y_test, _EVAL_BATCH),
                "error": one.error,
            }
            for one, ms in zip(contenders.found, times, strict=True)
        ]


def find(rows, weights, engine, precision):
    wanted = {"weights": weights, "engine": engine, "precision": precision}
    return next((row for row in rows if wanted.items() <= row.items()), None)


def goals(rows):
    """Of the pruned network in each precision of ours."""
    dense = find(rows, "dense", "torch", "fp32")["accuracy"]
    found = []
    for precision in ("fp32", "int8"):
        own = find(rows, "pruned", "gossamer", precision)
        lost = dense - own["accuracy"]
        text = f"{own['accuracy']:.2f} %, {lost:.2f} points below dense"
        is_met = lost <= MOST_LOST
        for theirs, least in LEAST_RATIOS.items():
            # In the same loop as ours: an engine that multiplies zeros takes as long with them.
            rival = find(rows, "pruned", "ONNX Runtime", theirs)
            if rival is not None:
                ratio = rival["ms"] / own["ms"]
                text += f"; {ratio:.2f}x ONNX Runtime {theirs} (goal {least:g})"
                is_met = is_met and ratio >= least
        found.append({"name": precision, "text": text, "is_met": is_met})
    return found


def shown(rows):
    made = Table(title="ResNet-20, CIFAR-10 test images")
    for column in ("weights", "engine", "precision", "ms", "x ORT fp32", "accuracy %"):
        made.add_column(column, justify="right")
    base = find(rows, "dense", "ONNX Runtime", "fp32")
    for row in rows:
        made.add_row(
            *(row[key] for key in ("weights", "engine", "precision")),
            f"{row['ms']:.3f}",
            "" if base is None else f"{base['ms'] / row['ms']:.2f}",
            f"{row['accuracy']:.2f}",
        )
    return made


if __name__ == "__main__":
    main()
