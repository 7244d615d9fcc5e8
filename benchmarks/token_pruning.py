# SPDX-License-Identifier: Apache-2.0
"""Learned token pruning of MiniLM on STS-B: quality against kept tokens and measured latency.

    GOSSAMER_DATA=DIR python benchmarks/token_pruning.py [--json] [--penalties 0.003 0.01]
        [--scales 0.9 1 1.1] [--soft-steps 200] [--hard-steps 200] [--longer]

For every penalty thresholds start from hand-set ones (`set_thresholds`) and are trained with the
weights on STS-B train (towards the packaged model's embeddings, or towards labels), then weights
alone; the learned thresholds are also measured times `scales`,
a knob that needs no training. Spearman x 100 is on STS-B dev; `lost` is against the
model as packaged, and with --longer against the same model trained for as many steps without
dropping anything, whichever is better. Latency is a pass over random batches of dev sentences in
their natural order: padded (stock transformers), packed without dropping, packed with dropping, in
one interleaved race, in milliseconds of processor time; both ratios are shown.
"""

import copy
import random
import sys
import time

import torch
from rich.table import Table
from torch import nn

from gossamer import settings
from gossamer.cli.minilm import load_minilm
from gossamer.nn.token_pruning import add_token_pruning, token_encoder
from gossamer.ops.timing import race, stopwatch
from gossamer.recipes.quality import mean_vectors
from gossamer.run.ragged import run_packed
from gossamer.train.token_pruning import (
    TokenPlan,
    measure_tokens,
    set_thresholds,
    train_token_pruning,
)
from support import options, stsb

SPEED_GOAL, LOSS_GOAL = 1.5, 1.0
PAIRS = 16


def arguments():
    made = options.parser("Learned token pruning of MiniLM on STS-B.")
    made.add_argument("--penalties", type=float, nargs="*", default=[0.003, 0.01])
    made.add_argument(
        "--kept", type=float, nargs=6, default=[1.0, 0.75, 0.65, 0.5, 0.45, 0.4],
        help="tokens left after each layer at the start of training",
    )  # fmt: skip
    made.add_argument(
        "--scales", type=float, nargs="+", default=[0.9, 1.0, 1.1],
        help="learned thresholds times these are measured, without more training",
    )  # fmt: skip
    made.add_argument("--soft-steps", type=int, default=200)
    made.add_argument("--hard-steps", type=int, default=200)
    made.add_argument("--lr", type=float, default=1e-4)
    made.add_argument("--threshold-lr", type=float, default=1e-4)
    made.add_argument("--temperature", type=float, default=2e-3)
    made.add_argument("--loss", choices=("labels", "teacher"), default="teacher")
    made.add_argument("--normalise", choices=("live", "received"), default="live")
    made.add_argument("--dropped", choices=("last", "zero"), default="zero")
    made.add_argument("--timed-batches", type=int, default=6)
    made.add_argument("--longer", action="store_true", help="train without dropping, too")
    return made.parse_args()


def show(name):
    start = time.perf_counter()

    def on_step(stage, step, loss, kept):
        if step % 20 == 19:
            options.progress(
                f"{name} {stage} {step + 1}: loss {loss:.4f}, kept"
                f" {' '.join(f'{part:.2f}' for part in kept)},"
                f" {time.perf_counter() - start:.0f} s"
            )

    return on_step


def fresh(minilm):
    """A copy whose embeddings stay: half of all parameters, and a batch touches few rows."""
    model = copy.deepcopy(minilm.model)
    model.embeddings.requires_grad_(False)
    # Runs are a few hundred steps: there is nothing to overfit, and dropout moves importance.
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def embeddings(model, batch):
    """Unit vectors of a batch of sentences."""
    return mean_vectors(model, {name: batch[name] for name in ("input_ids", "attention_mask")})


def to_teacher(minilm):
    """Squared distance to the embeddings of the packaged model."""

    def loss(model, batch):
        with torch.no_grad():
            wanted = embeddings(minilm.model, batch)
        return (embeddings(model, batch) - wanted).square().sum(dim=1).mean()

    return loss


def with_pruning(minilm, train, penalty, given):
    """Thresholds and weights learned at one price."""
    model = fresh(minilm)
    add_token_pruning(model, 0.0, normalise=given.normalise, dropped=given.dropped)
    set_thresholds(model, train[:10], stsb.cosines, given.kept)
    plan = TokenPlan(
        penalty=penalty,
        soft_steps=given.soft_steps,
        hard_steps=given.hard_steps,
        lr=given.lr,
        threshold_lr=given.threshold_lr,
        temperature=given.temperature,
        final_temperature=given.temperature / 5,
    )
    name = f"penalty {penalty:g}"
    loss = stsb.loss if given.loss == "labels" else to_teacher(minilm)
    train_token_pruning(model, train, loss, plan, on_step=show(name))
    return model


def trained_longer(minilm, train, given):
    """Thresholds of 0 drop nothing; the loop is the same."""
    model = fresh(minilm)
    add_token_pruning(model, 0.0)
    steps = given.soft_steps + given.hard_steps
    plan = TokenPlan(penalty=0.0, soft_steps=0, hard_steps=steps, lr=given.lr)
    train_token_pruning(model, train, stsb.loss, plan, on_step=show("longer"))
    return model


def packed(model):
    made = copy.deepcopy(model)
    run_packed(made)
    return made.eval()


def latency(models, batches, seconds):
    """Best milliseconds of a batch, models in turn."""

    def one_pass(model):
        def run():
            for batch in batches:
                model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])

        return run

    with torch.inference_mode():
        best = race(
            [stopwatch(one_pass(model), time.process_time) for model in models],
            budget_seconds=seconds,
            min_rounds=5,
        )
    return [us / 1e3 / len(batches) for us in best]


def measured(model, rivals, dev, timed, given):
    """Quality, kept tokens and latency beside the models that drop nothing."""
    fast = packed(model)
    cost = measure_tokens(model, dev[::3], stsb.cosines)
    times = latency([*rivals, fast], timed, given.seconds or 20.0)
    return {
        "kept": cost.kept,
        "macs": cost.macs,
        "spearman": stsb.spearman(fast, dev),
        "padded_ms": times[0],
        "packed_ms": times[1],
        "ms": times[2],
        "thresholds": token_encoder(model).thresholds.tolist(),
    }


def summary(document):
    table = Table(
        title=f"MiniLM, STS-B dev, {document['tokens']:.1f} tokens per sentence, batches of"
        f" {2 * PAIRS}; goal: {SPEED_GOAL}x faster at under {LOSS_GOAL:g} point lost"
    )
    for column in ("penalty", "thresholds x", "% tokens kept per layer", "MACs", "Spearman", "lost",
                   "ms padded", "ms packed", "ms", "x padded", "x packed"):  # fmt: skip
        table.add_column(column, justify="right")
    for row in document["rows"]:
        table.add_row(
            f"{row['penalty']:g}",
            f"{row['scale']:g}",
            " ".join(f"{100 * part:.0f}" for part in row["kept"]),
            f"{row['macs']:.2f}",
            f"{row['spearman']:.2f}",
            f"{max(document['baseline'].values()) - row['spearman']:.2f}",
            *(f"{row[name]:.1f}" for name in ("padded_ms", "packed_ms", "ms")),
            f"{row['padded_ms'] / row['ms']:.2f}",
            f"{row['packed_ms'] / row['ms']:.2f}",
        )
    return table


def main():
    given = arguments()
    torch.set_num_threads(given.threads)
    folder = settings.data_dir()
    if folder is None or not (folder / "stsb").is_dir():
        sys.exit("token_pruning: set GOSSAMER_DATA to the folder that holds stsb.")
    minilm = load_minilm()
    pairs, held_out = (stsb.read_pairs(folder, split) for split in ("train", "dev"))
    draw = random.Random(0)  # noqa: S311 (a draw, no secret)
    draw.shuffle(pairs)
    draw.shuffle(held_out)
    if given.quick:
        pairs, held_out = pairs[:500], held_out[:200]
    # Batches are drawn in a new order each epoch; within one, lengths are alike.
    train = stsb.make_batches(pairs, minilm.tokenizer, PAIRS)
    draw.shuffle(train)
    dev = stsb.make_batches(held_out, minilm.tokenizer, 64)
    timed = [
        batch
        for start in range(0, PAIRS * given.timed_batches, PAIRS)
        for batch in stsb.make_batches(held_out[start : start + PAIRS], minilm.tokenizer, PAIRS)
    ]
    rivals = [minilm.model, packed(minilm.model)]
    baseline = {"packaged": stsb.spearman(rivals[1], dev)}
    if given.longer:
        baseline["longer"] = stsb.spearman(packed(trained_longer(minilm, train, given)), dev)
    options.progress(f"without dropping: {baseline}")
    rows = []
    for penalty in given.penalties:
        model = with_pruning(minilm, train, penalty, given)
        learned = token_encoder(model).thresholds.detach().clone()
        for scale in given.scales:
            token_encoder(model).thresholds.data = scale * learned
            rows.append(
                {"penalty": penalty, "scale": scale, **measured(model, rivals, dev, timed, given)}
            )
            options.progress(f"{rows[-1]}")
    document = {
        "machine": options.machine(),
        "baseline": baseline,
        "tokens": stsb.mean_length(dev),
        "settings": {name: str(value) for name, value in vars(given).items()},
        "rows": rows,
    }
    found = ", ".join(f"{name} {value:.2f}" for name, value in baseline.items())
    options.give(given, document, f"without dropping: {found}", summary(document))


if __name__ == "__main__":
    main()
