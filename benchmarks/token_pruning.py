# SPDX-License-Identifier: Apache-2.0
"""Learned token pruning of MiniLM: quality against kept tokens and measured latency.

    GOSSAMER_DATA=DIR python benchmarks/token_pruning.py [--task sst2|stsb] [--json [FILE]]
        [--kept 1 0.95 0.7 0.45 0.25 0.04]
        [--scales 0.7 1 1.3] [--soft-steps 20] [--hard-steps 60] [--longer]

SST-2 is a classifier on [CLS], trained first without dropping; STS-B are the embeddings as
packaged. Thresholds start from hand-set ones, with which the shares --kept of the tokens are left
after each layer, and are trained with the weights, the model without dropping as teacher; then
weights are trained alone. Learned thresholds are also measured times `scales`, a knob that needs no
training. What is trained is kept in --work, so a run that was stopped goes on. `lost` is against
the model without dropping or, with --longer, the same model trained for as many steps more on
labels, whichever is better.

Latency is a pass over held-out texts in their natural order, 32 at a time and one at a time, in
milliseconds of processor time: padded (stock transformers), packed without dropping, packed with
dropping. All of them run in turn, round after round; times are medians over the rounds, and ratios
are medians of the ratios of a round with their range.
"""

import copy
import statistics
import sys
import time
from pathlib import Path

import torch
from rich.table import Table
from torch import nn

import gossamer
from gossamer import settings
from gossamer.nn.tokens import add_token_pruning, token_encoder
from gossamer.ops.timing import stopwatch
from gossamer.running.encoder import run_packed
from gossamer.training.token_pruning import (
    TokenPlan,
    measure_tokens,
    set_thresholds,
    train_token_pruning,
)
from support import options, stsb
from support.minilm import load_minilm
from support.token_tasks import SIZE, show, sst2_task, stsb_task, train_without_dropping

SPEED_GOAL, LOSS_GOAL = 1.5, 1.0
# Options that decide what is learned.
DECISIVE = ("task", "quick", "dense_steps", "penalty", "soft_steps", "hard_steps", "lr",
            "threshold_lr", "temperature", "normalise", "dropped")  # fmt: skip


def arguments():
    made = options.parser("Learned token pruning of MiniLM.")
    made.add_argument("--task", choices=("sst2", "stsb"), default="sst2")
    made.add_argument(
        "--kept", type=float, nargs=6,
        help="tokens left after each layer at the start of training; the default is the task's",
    )  # fmt: skip
    made.add_argument(
        "--scales", type=float, nargs="+", default=[0.7, 1.0, 1.3],
        help="learned thresholds times these are measured, without more training",
    )  # fmt: skip
    made.add_argument("--penalty", type=float, default=0.003)
    made.add_argument("--dense-steps", type=int, default=400, help="of the SST-2 classifier")
    made.add_argument("--soft-steps", type=int, default=20)
    made.add_argument("--hard-steps", type=int, default=60)
    made.add_argument("--lr", type=float, default=1e-4)
    made.add_argument("--threshold-lr", type=float, default=1e-4)
    made.add_argument("--temperature", type=float, default=5e-4)
    made.add_argument("--normalise", choices=("live", "received"), default="live")
    made.add_argument("--dropped", choices=("last", "zero"), default="zero")
    made.add_argument("--timed-batches", type=int, default=2)
    made.add_argument("--rounds", type=int, default=10, help="of timing")
    made.add_argument("--longer", action="store_true", help="train without dropping, too")
    made.add_argument(
        "--work", type=Path, default=settings.cache_dir() / "token_pruning",
        help="where what is trained is kept (%(default)s)",
    )  # fmt: skip
    return made.parse_args()


def fresh(model):
    """A copy whose embeddings stay: half of all parameters, and a batch touches few rows."""
    made = copy.deepcopy(model)
    made.get_input_embeddings().requires_grad_(False)
    # Runs are a few hundred steps: there is little to overfit, and dropout moves importance.
    for module in made.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return made


def with_pruning(task, given):
    """Thresholds and weights, learned now or read where an earlier run left them."""
    model = fresh(task.model)
    add_token_pruning(model, 0.0, normalise=given.normalise, dropped=given.dropped)
    kept = given.kept or task.kept
    options_used = "-".join(f"{getattr(given, name)}" for name in DECISIVE)
    place = given.work / options_used / "-".join(f"{part:g}" for part in kept)
    if place.is_dir():
        options.progress(f"the pruned model is read from {place}")
        return gossamer.load(place, model=model)
    set_thresholds(model, task.train[:10], task.call, kept)
    plan = TokenPlan(
        penalty=given.penalty,
        soft_steps=given.soft_steps,
        hard_steps=given.hard_steps,
        lr=given.lr,
        threshold_lr=given.threshold_lr,
        temperature=given.temperature,
        final_temperature=given.temperature / 5,
    )
    train_token_pruning(model, task.train, task.loss, plan, on_step=show("pruned"))
    gossamer.save(model, place)
    return model


def packed(model):
    made = copy.deepcopy(model)
    run_packed(made)
    return made.eval()


def curve(task, given):
    """Rows without times, and the packed model of each."""
    rows, models = [], []
    model = with_pruning(task, given)
    learned = token_encoder(model).thresholds.detach().clone()
    for scale in given.scales:
        token_encoder(model).thresholds.data = scale * learned
        fast = packed(model)
        cost = measure_tokens(model, task.dev[::3], task.call)
        rows.append(
            {
                "scale": scale,
                "kept": cost.kept,
                "macs": cost.macs,
                "score": task.score(fast, task.dev),
                "thresholds": token_encoder(model).thresholds.tolist(),
            }
        )
        options.progress(f"{rows[-1]}")
        models.append(fast)
    return rows, models


def singles(batches):
    """Every text of the batches alone, without padding."""
    rows = [
        (ids, int(keep.sum()))
        for batch in batches
        for ids, keep in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    return [
        {"input_ids": ids[None, :n], "attention_mask": torch.ones(1, n, dtype=torch.long)}
        for ids, n in rows
    ]


def latency(models, batches, rounds):
    """Milliseconds of a batch per model and round, models in turn."""

    def one_pass(model):
        def run():
            for batch in batches:
                model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])

        return stopwatch(run, time.process_time)

    watches = [one_pass(model) for model in models]
    with torch.inference_mode():
        for watch in watches:
            watch()
        times = [[watch() for watch in watches] for _ in range(rounds)]
    return [[1e3 * t / len(batches) for t in own] for own in zip(*times, strict=True)]


def add_times(rows, task, models, given):
    """Times of every row beside the models that drop nothing; returns those."""
    rivals = [task.model, packed(task.model)]
    alone = singles(task.timed)[: 8 * given.timed_batches]
    dense = {}
    for name, batches in ((f"batch {SIZE}", task.timed), ("batch 1", alone)):
        padded, dense_packed, *own = latency([*rivals, *models], batches, given.rounds)
        dense[name] = {"padded_ms": padded, "packed_ms": dense_packed}
        for row, ms in zip(rows, own, strict=True):
            row[name] = {
                "ms": ms,
                "x_padded": [a / b for a, b in zip(padded, ms, strict=True)],
                "x_packed": [a / b for a, b in zip(dense_packed, ms, strict=True)],
            }
    return dense


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def summary(document, name):
    """One table for one batch size."""
    rivals = document["dense"][name]
    padded, dense = (statistics.median(rivals[key]) for key in ("padded_ms", "packed_ms"))
    table = Table(
        title=f"{document['title']}, {document['tokens']:.1f} tokens per text, {name}: padded"
        f" {padded:.1f} ms, packed {dense:.1f} ms; goal: {SPEED_GOAL}x at under"
        f" {LOSS_GOAL:g} point lost"
    )
    for column in ("thresholds x", "% tokens kept per layer", "MACs", document["unit"],
                   "lost", "ms", "x padded", "x packed"):  # fmt: skip
        table.add_column(column, justify="right")
    for row in document["rows"]:
        table.add_row(
            f"{row['scale']:g}",
            " ".join(f"{100 * part:.0f}" for part in row["kept"]),
            f"{row['macs']:.2f}",
            f"{row['score']:.2f}",
            f"{max(document['baseline'].values()) - row['score']:.2f}",
            f"{statistics.median(row[name]['ms']):.1f}",
            spread(row[name]["x_padded"]),
            spread(row[name]["x_packed"]),
        )
    return table


def main():
    given = arguments()
    torch.set_num_threads(given.threads)
    folder = settings.data_dir()
    if folder is None or not (folder / given.task).is_dir():
        sys.exit(f"token_pruning: set GOSSAMER_DATA to the folder that holds {given.task}.")
    minilm = load_minilm()
    if given.task == "sst2":
        task = sst2_task(folder, minilm, given, given.work)
    else:
        task = stsb_task(folder, minilm, given)
    baseline = {"as it was": task.score(packed(task.model), task.dev)}
    if given.longer:
        longer, steps = fresh(task.model), given.soft_steps + given.hard_steps
        train_without_dropping(longer, task.train, task.labels, steps, given.lr, "longer")
        baseline["trained longer"] = task.score(packed(longer), task.dev)
    options.progress(f"without dropping: {baseline}")
    rows, models = curve(task, given)
    dense = add_times(rows, task, models, given)
    document = {
        "machine": options.machine(),
        "title": task.title,
        "unit": task.unit,
        "baseline": baseline,
        "tokens": stsb.mean_length(task.dev),
        "settings": {name: str(value) for name, value in vars(given).items()},
        "dense": dense,
        "rows": rows,
    }
    found = ", ".join(f"{name} {value:.2f}" for name, value in baseline.items())
    options.give(
        given, document, f"without dropping: {found}", *(summary(document, name) for name in dense)
    )


if __name__ == "__main__":
    main()
