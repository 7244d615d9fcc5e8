# SPDX-License-Identifier: Apache-2.0
"""Learned token pruning of MiniLM on SST-2: accuracy against kept tokens and measured latency.

    GOSSAMER_DATA=DIR python benchmarks/token_pruning.py [--json] [--penalties 0.02 0.05 0.1]
        [--dense-steps 600] [--soft-steps 200] [--hard-steps 200] [--dense FILE]

A classifier on the first token is fine-tuned on SST-2 train (`dense`; with --dense FILE it is kept
there and used again). From it, every penalty trains a soft and a hard stage; `longer` trains the
dense one for as many more steps without dropping anything, and `lost` is against the better of the
two. Accuracy is on all of dev. Latency is one pass over random batches of dev in their natural
order, padded (stock transformers), packed without dropping, and packed with dropping, in one
interleaved race; both ratios are shown.
"""

import copy
import random
import sys
import time
from pathlib import Path

import torch
from rich.table import Table
from safetensors.torch import load_file, save_file

from gossamer import settings
from gossamer.cli.minilm import load_minilm
from gossamer.nn.token_pruning import add_token_pruning, token_encoder
from gossamer.ops.timing import race, stopwatch
from gossamer.run.ragged import run_packed
from gossamer.train.token_pruning import TokenPlan, measure_tokens, train_token_pruning
from support import options, sst2

SPEED_GOAL, LOSS_GOAL = 1.5, 1.0
BATCH = 32


def arguments():
    made = options.parser("Learned token pruning of MiniLM on SST-2.")
    made.add_argument("--penalties", type=float, nargs="*", default=[0.02, 0.05, 0.1])
    made.add_argument("--dense", type=Path, metavar="FILE")
    made.add_argument("--dense-steps", type=int, default=600)
    made.add_argument("--soft-steps", type=int, default=200)
    made.add_argument("--hard-steps", type=int, default=200)
    made.add_argument("--lr", type=float, default=5e-5)
    made.add_argument("--normalise", choices=("live", "received"), default="received")
    made.add_argument("--start", type=float, help="threshold of the last layer at the start")
    made.add_argument("--temperature", type=float, help="of the soft stage")
    made.add_argument("--threshold-lr", type=float)
    made.add_argument("--timed-batches", type=int, default=8)
    made.add_argument("--no-longer", action="store_true", help="leave `longer` out")
    return made.parse_args()


def train_dense(model, batches, steps, lr, seed):
    """Plain fine-tuning through the same loop: thresholds of 0 drop nothing."""
    encoder = add_token_pruning(model.encoder, 0.0)
    plan = TokenPlan(penalty=0.0, soft_steps=0, hard_steps=steps, lr=lr, seed=seed)
    train_token_pruning(model, batches, sst2.loss, plan, on_step=show("dense"))
    encoder.phase = "off"
    return model


def show(name):
    start = time.perf_counter()

    def on_step(stage, step, loss, kept):
        if step % 50 == 49:
            options.progress(
                f"{name} {stage} {step + 1}: loss {loss:.3f}, kept"
                f" {' '.join(f'{part:.2f}' for part in kept)},"
                f" {time.perf_counter() - start:.0f} s"
            )

    return on_step


def dense_model(minilm, train, given):
    model = sst2.Classifier(copy.deepcopy(minilm.model))
    torch.manual_seed(0)
    model.head.reset_parameters()
    if given.dense and given.dense.exists():
        add_token_pruning(model.encoder, 0.0).phase = "off"
        model.load_state_dict(load_file(given.dense))
        return model.eval()
    model = train_dense(model, train, given.dense_steps, given.lr, 0)
    if given.dense:
        save_file(model.state_dict(), given.dense)
    return model


def with_pruning(dense, train, penalty, given):
    """A copy of the dense model with thresholds learned at one price."""
    model = copy.deepcopy(dense)
    encoder = token_encoder(model)
    # A received attention of 1 is the average token; divided by the live length it is 1 / length.
    scale = 1.0 if given.normalise == "received" else 0.1
    encoder.rules[0] = 2 if given.normalise == "received" else 0
    depth = torch.arange(1, len(encoder.layer) + 1)
    start = scale * 0.3 if given.start is None else given.start
    encoder.thresholds.data.copy_(start * depth / len(encoder.layer))
    plan = TokenPlan(
        penalty=penalty,
        soft_steps=given.soft_steps,
        hard_steps=given.hard_steps,
        lr=given.lr,
        threshold_lr=given.threshold_lr or scale * 1e-2,
        temperature=given.temperature or scale * 0.1,
        final_temperature=(given.temperature or scale * 0.1) / 5,
        seed=1,
    )
    stages = train_token_pruning(
        model, train, sst2.loss, plan, on_step=show(f"penalty {penalty:g}")
    )
    return model, stages


def packed(model):
    made = copy.deepcopy(model)
    run_packed(made.encoder)
    return made.eval()


def stock(minilm, dense):
    """The dense classifier on transformers' own encoder."""
    model = sst2.Classifier(copy.deepcopy(minilm.model))
    model.load_state_dict(dense.state_dict(), strict=False)
    return model.eval()


def latency(models, batches, seconds):
    """Best milliseconds of a pass over all batches, models in turn."""

    def one_pass(model):
        def run():
            for batch in batches:
                sst2.logits(model, batch)

        return run

    with torch.inference_mode():
        best = race(
            [stopwatch(one_pass(model)) for model in models],
            budget_seconds=seconds,
            min_rounds=5,
        )
    return [us / 1e3 / len(batches) for us in best]


def summary(document):
    table = Table(
        title=f"MiniLM, SST-2 dev, {document['tokens']:.1f} tokens per phrase, batches of {BATCH};"
        f" goal: {SPEED_GOAL}x faster at under {LOSS_GOAL:g} point lost"
    )
    for column in ("model", "tokens kept per layer", "MACs", "accuracy", "lost", "ms padded",
                   "ms packed", "ms", "x padded", "x packed"):  # fmt: skip
        table.add_column(column, justify="right")
    for row in document["rows"]:
        table.add_row(
            row["name"],
            " ".join(f"{100 * part:.0f}" for part in row["kept"]),
            f"{row['macs']:.2f}",
            f"{row['accuracy']:.2f}",
            f"{row['lost']:.2f}",
            *(f"{row[name]:.1f}" for name in ("padded_ms", "packed_ms", "ms")),
            f"{row['padded_ms'] / row['ms']:.2f}",
            f"{row['packed_ms'] / row['ms']:.2f}",
        )
    return table


def main():
    given = arguments()
    torch.set_num_threads(given.threads)
    folder = settings.data_dir()
    if folder is None or not (folder / "sst2").is_dir():
        sys.exit("token_pruning: set GOSSAMER_DATA to the folder that holds sst2.")
    minilm = load_minilm()
    phrases, held_out = (sst2.read_phrases(folder, split) for split in ("train", "dev"))
    draw = random.Random(0)  # noqa: S311 (a draw, no secret)
    draw.shuffle(phrases)
    draw.shuffle(held_out)
    if given.quick:
        phrases, held_out = phrases[:2000], held_out[:500]
    train = sst2.make_batches(phrases, minilm.tokenizer, BATCH)
    dev = sst2.make_batches(held_out, minilm.tokenizer, 128)
    timed = sst2.make_batches(
        held_out[: BATCH * given.timed_batches], minilm.tokenizer, BATCH, by_length=False
    )
    dense = dense_model(minilm, train, given)
    baseline = {"dense": sst2.accuracy(packed(dense), dev)}
    options.progress(f"dense: {baseline['dense']:.2f}")
    if not given.no_longer:
        more = train_dense_on(dense, train, given)
        baseline["longer"] = sst2.accuracy(packed(more), dev)
        options.progress(f"longer: {baseline['longer']:.2f}")
    rivals = [stock(minilm, dense), packed(dense)]
    rows = []
    for penalty in given.penalties:
        model, stages = with_pruning(dense, train, penalty, given)
        fast = packed(model)
        found = sst2.accuracy(fast, dev)
        cost = measure_tokens(model, dev, sst2.logits)
        times = latency([*rivals, fast], timed, given.seconds or 20.0)
        rows.append(
            {
                "name": f"penalty {penalty:g}",
                "penalty": penalty,
                "kept": cost.kept,
                "macs": cost.macs,
                "accuracy": found,
                "lost": max(baseline.values()) - found,
                "padded_ms": times[0],
                "packed_ms": times[1],
                "ms": times[2],
                "thresholds": stages[-1].thresholds if stages else [],
            }
        )
        options.progress(f"{rows[-1]}")
    lengths = torch.cat([batch["attention_mask"].sum(1) for batch in dev])
    document = {
        "machine": options.machine(),
        "baseline": baseline,
        "tokens": float(lengths.double().mean()),
        "normalise": given.normalise,
        "rows": rows,
    }
    found = ", ".join(f"{name} {value:.2f}" for name, value in baseline.items())
    options.give(given, document, f"accuracy without dropping: {found}", summary(document))


def train_dense_on(dense, train, given):
    """The dense model after as many more steps as pruning takes."""
    model = copy.deepcopy(dense)
    token_encoder(model).phase = "hard"
    steps = given.soft_steps + given.hard_steps
    plan = TokenPlan(penalty=0.0, soft_steps=0, hard_steps=steps, lr=given.lr, seed=1)
    train_token_pruning(model, train, sst2.loss, plan, on_step=show("longer"))
    token_encoder(model).phase = "off"
    return model


if __name__ == "__main__":
    main()
