# SPDX-License-Identifier: Apache-2.0
"""Accuracy of every schedule on Fashion-MNIST beside dense, at equal steps.

    python benchmarks/schedules.py [--json] [--seeds 3] [--sparsities 0.8 0.9 0.95]
        [--methods gradual rigl ...] [--epochs 5] [--data DIR] [--threads 2]

An MLP 784-300-100-10 and, for Early-Bird beside late pruning, a CNN with BatchNorm.
All runs of a seed see the same batches, the same optimizer (AdamW, cosine learning rate) and the
same number of steps. `lost` is in points of test accuracy against the dense run of the same seed.
"""

import math
import statistics
import time

import torch
from rich.table import Table
from torch import nn
from torch.nn.functional import cross_entropy

import gossamer
from support import fashion, options

BATCH, RATE, DECAY = 128, 3e-3, 1e-2
# Everything a method needs beside the sparsity; what is left out is the schedule's default.
METHODS = {
    "oneshot": {},
    "gradual": {},
    "acdc": {},
    "topkast": {},
    "rigl": {},
    "set": {},
    "early_bird": {},
    "snip": {},
    "grasp": {},
    "synflow": {},
    "random": {},
}
DYNAMIC = ("gradual", "acdc", "topkast", "rigl", "set")
WITHIN_A_POINT = ("gradual", "rigl")


def arguments():
    made = options.parser("Accuracy of every schedule on Fashion-MNIST.")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--sparsities", type=float, nargs="+", default=[0.8, 0.9, 0.95])
    made.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    made.add_argument("--epochs", type=int, default=5)
    made.add_argument("--limit", type=int, help="so many training images only")
    made.add_argument("--data", help="folder with the four idx files of Fashion-MNIST")
    made.add_argument("--parts", nargs="+", choices=("mlp", "cnn"), default=["mlp", "cnn"])
    given = made.parse_args()
    if given.quick:
        given.seeds, given.epochs, given.limit = 1, 2, 6000
    return given


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(),
        nn.Linear(100, 10),
    )  # fmt: skip


def cnn():
    def stage(inner, outer):
        return [nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]

    return nn.Sequential(
        *stage(1, 16), nn.MaxPool2d(2), *stage(16, 32), nn.MaxPool2d(2), *stage(32, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def batch_loss(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def train(make, data, schedule, seed, epochs):
    """Test accuracy in percent and what happened."""
    torch.manual_seed(seed)
    model = make()
    per_epoch = len(data.x_train) // BATCH
    steps = epochs * per_epoch
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed}, {"params": plain, "weight_decay": 0.0}], RATE, weight_decay=DECAY
    )
    ctl = None
    if schedule is not None:
        first = [(data.x_train[:500], data.y_train[:500])]
        ctl = gossamer.attach(
            model, {**schedule, "seed": seed}, optimizer, total_steps=steps, data=first,
            loss=batch_loss,
        )  # fmt: skip
    order = torch.Generator().manual_seed(seed)
    start, step, position = time.perf_counter(), 0, 0
    for _ in range(epochs):
        shuffled = torch.randperm(len(data.x_train), generator=order)
        for index in shuffled[: per_epoch * BATCH].split(BATCH):
            for group in optimizer.param_groups:
                group["lr"] = (
                    RATE
                    * min(1.0, (position + 1) / 100)
                    * (0.5 + 0.5 * math.cos(math.pi * position / steps))
                )
            optimizer.zero_grad()
            loss = batch_loss(model, (data.x_train[index], data.y_train[index]))
            extra = None if ctl is None else ctl.penalty()
            (loss if extra is None else loss + extra).backward()
            optimizer.step()
            step, position = step + 1, position + 1
            for event in [] if ctl is None else ctl.step():
                position = event.details.get("lr_step", position)
    seconds = time.perf_counter() - start
    return {
        "accuracy": accuracy(model, data),
        "sparsity": 0.0 if ctl is None else ctl.sparsity(),
        "seconds": seconds,
        "ticket": ticket(ctl, steps),
    }


def ticket(ctl, steps):
    """When Early-Bird drew, as a fraction of the run."""
    drawn = [] if ctl is None else [event for event in ctl.events if event.kind == "ticket"]
    if not drawn:
        return None
    return {"at": drawn[0].step / steps, "agreed": drawn[0].details["agreed"]}


@torch.inference_mode()
def accuracy(model, data):
    model.eval()
    hits = sum(
        int((model(x).argmax(1) == y).sum())
        for x, y in zip(data.x_test.split(1000), data.y_test.split(1000), strict=True)
    )
    return 100.0 * hits / len(data.y_test)


def mlp_runs(data, given):
    runs = []
    for seed in range(given.seeds):
        dense = train(mlp, data, None, seed, given.epochs)
        runs.append({"method": "dense", "goal": 0.0, "seed": seed, **dense})
        options.progress(f"schedules: seed {seed} dense {dense['accuracy']:.2f}")
        for goal in given.sparsities:
            for method in given.methods:
                schedule = {"kind": method, "sparsity": goal, **METHODS[method]}
                found = train(mlp, data, schedule, seed, given.epochs)
                runs.append({"method": method, "goal": goal, "seed": seed, **found})
                options.progress(
                    f"schedules: seed {seed} {method} {goal:g} {found['accuracy']:.2f}"
                    f" ({found['seconds']:.0f} s)"
                )
    return runs


def cnn_runs(data, given):
    """Early-Bird on channels and weights, beside the same pruning late in the run."""
    cases = {
        "dense": None,
        "early-bird channels 50 %": {"kind": "early_bird", "form": "channels", "sparsity": 0.5},
        "late channels 50 %": {
            "kind": "early_bird", "form": "channels", "sparsity": 0.5, "begin": 0.7, "end": 0.7,
        },
        "early-bird weights 80 %": {"kind": "early_bird", "sparsity": 0.8},
        "late weights 80 %": {"kind": "oneshot", "at": 0.7, "budget": "global", "sparsity": 0.8},
    }  # fmt: skip
    runs = []
    for seed in range(given.seeds):
        for name, schedule in cases.items():
            found = train(cnn, data, schedule, seed, given.epochs)
            runs.append({"method": name, "seed": seed, **found})
            options.progress(
                f"schedules: CNN seed {seed} {name} {found['accuracy']:.2f} {found['ticket'] or ''}"
            )
    return runs


def spread(values):
    return f"{statistics.mean(values):.2f} +- {(max(values) - min(values)) / 2:.2f}"


def mlp_table(runs, given, source):
    dense = {run["seed"]: run["accuracy"] for run in runs if run["method"] == "dense"}
    title = f"MLP 784-300-100-10, Fashion-MNIST ({source}), dense {spread(list(dense.values()))} %"
    table = Table(title=title)
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
    data = fashion.load(given.data, given.limit)
    runs = mlp_runs(data, given) if "mlp" in given.parts else []
    convolutional = cnn_runs(data, given) if "cnn" in given.parts else []
    document = {
        "machine": options.machine(),
        "data": data.source,
        "epochs": given.epochs,
        "batch": BATCH,
        "mlp": runs,
        "cnn": convolutional,
    }
    tables = [mlp_table(runs, given, data.source)] if runs else []
    tables += [cnn_table(convolutional)] if convolutional else []
    options.give(given, document, *tables)


if __name__ == "__main__":
    main()
