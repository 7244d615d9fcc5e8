# SPDX-License-Identifier: Apache-2.0
"""Accuracy of every schedule on Fashion-MNIST beside dense, at equal steps.

    python benchmarks/schedules.py [--json FILE] [--seeds 3] [--sparsities 0.8 0.9 0.95]
        [--methods gradual rigl ...] [--epochs 5] [--limit 30000] [--data DIR] [--log FILE]
    python benchmarks/schedules.py --held-out --methods rigl --set rigl.drop=0.3

An MLP 784-300-100-10 and, for Early-Bird beside late pruning, a CNN with BatchNorm. All runs of a
seed see the same batches, the same optimizer and the same number of steps; only the late-pruned
CNNs train longer. `lost` is in points of accuracy against the dense run of the same seed.

What METHODS sets was chosen on training images that are set aside and not trained on (--held-out),
with one seed. The budget of the CNN's channels was not: it was changed after a run on test images.
With --log, runs that are in FILE already are not done again.
"""

import json
import statistics
import sys

import torch
from rich.table import Table

from support import fashion, options
from support.fashion_training import BATCH, OPTIMIZERS, Finished, num_steps, train

# Everything a method needs beside the sparsity; what is left out is the schedule's default.
METHODS = {
    "oneshot": {},
    "gradual": {},
    "acdc": {"phase": 0.1, "last_dense": 0.5, "end": 0.6},
    "topkast": {},
    "rigl": {"every": 0.04, "end": 0.5, "drop": 0.5, "gradient_steps": 10},
    "set": {"every": 0.04},
    "early_bird": {},
    "snip": {},
    "grasp": {},
    "synflow": {},
    "random": {},
}
DYNAMIC = ("gradual", "acdc", "topkast", "rigl", "set")
WITHIN_A_POINT = ("gradual", "rigl")
# Late pruning has the whole dense run, and then this part of it again to recover.
AGAIN = 0.7


def arguments():
    made = options.parser("Accuracy of every schedule on Fashion-MNIST.")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--sparsities", type=float, nargs="+", default=[0.8, 0.9, 0.95])
    made.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    made.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    made.add_argument("--epochs", type=int, default=5)
    made.add_argument("--limit", type=int, help="so many training images only")
    made.add_argument("--data", help="folder with the four idx files of Fashion-MNIST")
    made.add_argument("--parts", nargs="+", choices=("mlp", "cnn"), default=["mlp", "cnn"])
    made.add_argument("--held-out", action="store_true", help="test on held-out training images")
    made.add_argument("--set", nargs="*", default=[], help="other settings: rigl.every=0.05")
    made.add_argument("--log", metavar="FILE", help="finished runs, as JSON lines")
    given = made.parse_args()
    if given.quick:
        given.seeds, given.epochs, given.limit = 1, 2, 6000
    return given


def settings(given):
    """METHODS with what --set says."""
    found = {method: dict(own) for method, own in METHODS.items()}
    for text in given.set:
        name, _, value = text.partition("=")
        method, _, key = name.partition(".")
        if method not in found or not key or not value:
            sys.exit(f"schedules: --set {text}: expected METHOD.KEY=VALUE, as in rigl.every=0.05.")
        found[method][key] = json.loads(value)
    return found


def mlp_cases(given):
    """(method, sparsity, schedule) of one seed."""
    own = settings(given)
    yield "dense", 0.0, None
    for goal in given.sparsities:
        for method in given.methods:
            yield method, goal, {"kind": method, "sparsity": goal, **own[method]}


def cnn_cases(end):
    """Name -> schedule and what follows: Early-Bird beside the same pruning after a whole run.

    `end` is the last step of that run.
    """
    # One threshold for all gammas, as published, starves the first layers in a run this short.
    channels = {"kind": "early_bird", "form": "channels", "budget": "uniform", "sparsity": 0.5}
    published = {**channels, "budget": "global"}
    return {
        "dense": (None, 0.0),
        "early-bird channels 50 %": (channels, 0.0),
        "late channels 50 %": ({**channels, "begin": end, "end": end}, AGAIN),
        "early-bird channels 50 %, global": (published, 0.0),
        "late channels 50 %, global": ({**published, "begin": end, "end": end}, AGAIN),
        "early-bird weights 80 %": ({"kind": "early_bird", "sparsity": 0.8}, 0.0),
        "late weights 80 %": (
            {"kind": "oneshot", "at": end, "budget": "global", "sparsity": 0.8}, AGAIN,
        ),
    }  # fmt: skip


def all_runs(data, given):
    """Results of both parts, seed after seed."""
    finished, mlp, cnn = Finished(given.log), [], []
    end = num_steps(data, given.epochs)

    def result(name, **case):
        case = {**case, "epochs": given.epochs, "optimizer": given.optimizer}
        found = finished.get({"data": data.source, **case}, lambda: train(data, **case))
        options.progress(
            f"schedules: {case['model']} seed {case['seed']} {name} {found['accuracy']:.2f}"
            f" ({found['cpu_seconds']:.0f} CPU s) {found['ticket'] or ''}"
        )
        return found

    for seed in range(given.seeds):
        for method, goal, schedule in mlp_cases(given) if "mlp" in given.parts else ():
            found = result(f"{method} {goal:g}", model="mlp", schedule=schedule, seed=seed)
            mlp.append({"method": method, "goal": goal, "seed": seed, **found})
        for name, (schedule, again) in cnn_cases(end).items() if "cnn" in given.parts else ():
            found = result(name, model="cnn", schedule=schedule, seed=seed, again=again)
            cnn.append({"method": name, "seed": seed, **found})
    return mlp, cnn


def spread(values):
    return f"{statistics.mean(values):.2f} +- {(max(values) - min(values)) / 2:.2f}"


def mlp_table(runs, given):
    dense = {run["seed"]: run["accuracy"] for run in runs if run["method"] == "dense"}
    table = Table(title=f"MLP 784-300-100-10, dense {spread(list(dense.values()))} %")
    table.add_column("method")
    for goal in given.sparsities:
        table.add_column(f"{goal:.0%}", justify="right")
        table.add_column("lost", justify="right")
    table.add_column("goal at 90 %")
    for method in given.methods:
        cells = []
        for goal in given.sparsities:
            own = [run for run in runs if (run["method"], run["goal"]) == (method, goal)]
            lost = [dense[run["seed"]] - run["accuracy"] for run in own]
            cells += [spread([run["accuracy"] for run in own]), f"{statistics.mean(lost):.2f}"]
        table.add_row(method, *cells, verdict(method, runs, dense))
    return table


def verdict(method, runs, dense):
    """Whether the goals of a method are met at 90 %."""

    def mean(name):
        own = [r["accuracy"] for r in runs if (r["method"], r["goal"]) == (name, 0.9)]
        return statistics.mean(own) if own else None

    own, static = mean(method), mean("random")
    if own is None:
        return ""
    words = []
    if method in WITHIN_A_POINT:
        lost = statistics.mean(dense.values()) - own
        words.append(f"within 1 point: {'yes' if lost <= 1 else 'NO'}")
    if method in DYNAMIC and static is not None:
        words.append(f"beats random: {'yes' if own > static else 'NO'}")
    return ", ".join(words)


def cnn_table(runs):
    table = Table(title="CNN 16-32-64 with BatchNorm")
    for column in ("run", "accuracy", "sparsity", "ticket drawn at"):
        table.add_column(column)
    for method in dict.fromkeys(run["method"] for run in runs):
        own = [run for run in runs if run["method"] == method]
        tickets = [run["ticket"] for run in own if run["ticket"] is not None]
        drawn = ", ".join(f"{t['at']:.0%}{'' if t['agreed'] else ' (forced)'}" for t in tickets)
        table.add_row(
            method,
            spread([run["accuracy"] for run in own]),
            f"{statistics.mean(run['sparsity'] for run in own):.3f}",
            drawn,
        )
    return table


def main():
    given = arguments()
    torch.set_num_threads(given.threads)
    data = fashion.load(given.data, given.limit, given.held_out)
    mlp, cnn = all_runs(data, given)
    document = {
        "machine": options.machine(),
        "data": data.source,
        "epochs": given.epochs,
        "batch": BATCH,
        "optimizer": given.optimizer,
        "settings": settings(given),
        "mlp": mlp,
        "cnn": cnn,
    }
    options.progress(f"schedules: Fashion-MNIST, {data.source}, {given.epochs} epochs")
    tables = [mlp_table(mlp, given)] if mlp else []
    tables += [cnn_table(cnn)] if cnn else []
    options.give(given, document, *tables)


if __name__ == "__main__":
    main()
