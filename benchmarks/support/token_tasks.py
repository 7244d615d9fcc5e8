# SPDX-License-Identifier: Apache-2.0
"""What token pruning is measured on: MiniLM's embeddings on STS-B, a classifier on SST-2."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import gossamer
from gossamer.nn.surgery import replace_module
from gossamer.nn.tokens import add_token_pruning
from gossamer.nn.tokens.bert_layers import find_encoder
from gossamer.runs.calibration import mean_vectors
from gossamer.training.token_pruning import TokenPlan, train_token_pruning
from support import options, sst2, stsb

SIZE = 32


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        title: for tables.
        unit: of the score.
        model: what tokens are dropped from, and what is compared with.
        train, dev: batches; within one, lengths are alike.
        timed: batches of 32 texts in their natural order.
        call: runs a model on a batch.
        labels: the loss that looks at labels only.
        loss: what token pruning is trained with, the model as teacher.
        score: of a model on batches, higher is better.
        kept: shares of the tokens left after each layer at the start of training.
    """

    title: str
    unit: str
    model: nn.Module
    train: list
    dev: list
    timed: list
    call: Callable
    labels: Callable
    loss: Callable
    score: Callable
    kept: tuple


def stsb_task(folder, minilm, given):
    """Embeddings as they are packaged."""
    draw = random.Random(0)  # noqa: S311 (a draw, no secret)
    train, dev = (stsb.read_pairs(folder, split) for split in ("train", "dev"))
    train, dev = _drawn(train, draw, 500, given), _drawn(dev, draw, 200, given)
    batches = stsb.make_batches(train, minilm.tokenizer, SIZE // 2)
    draw.shuffle(batches)
    shown = [dev[start : start + SIZE // 2] for start in range(0, len(dev), SIZE // 2)]
    return Task(
        title="MiniLM embeddings, STS-B dev",
        unit="Spearman",
        model=minilm.model,
        train=batches,
        dev=stsb.make_batches(dev, minilm.tokenizer, 64),
        timed=[
            batch
            for pairs in shown[: given.timed_batches]
            for batch in stsb.make_batches(pairs, minilm.tokenizer, SIZE // 2)
        ],
        call=stsb.cosines,
        labels=stsb.loss,
        loss=_to_embeddings(minilm.model),
        score=stsb.spearman,
        kept=(1.0, 0.75, 0.65, 0.5, 0.45, 0.4),
    )


def _to_embeddings(teacher):
    """Squared distance to the embeddings of the packaged model."""

    def vectors(model, batch):
        return mean_vectors(model, {key: batch[key] for key in ("input_ids", "attention_mask")})

    def loss(model, batch):
        wanted = _answer(teacher, batch, vectors)
        return (vectors(model, batch) - wanted).square().sum(dim=1).mean()

    return loss


def sst2_task(folder, minilm, given, work):
    """A classifier on [CLS], trained here once and then kept in `work`."""
    draw = random.Random(0)  # noqa: S311 (a draw, no secret)
    train, dev = sst2.splits(folder)
    train, dev = _drawn(train, draw, 500, given), _drawn(dev, draw, 200, given)
    batches = sst2.make_batches(train, minilm.tokenizer, SIZE)
    draw.shuffle(batches)
    model = _classifier(minilm, batches, given, work)
    return Task(
        title=f"MiniLM classifier, SST-2, {len(dev)} held-out texts of {sst2.DEV_WORDS} words up",
        unit="accuracy",
        model=model,
        train=batches,
        dev=sst2.make_batches(dev, minilm.tokenizer, 64),
        timed=sst2.make_batches(
            dev[: SIZE * given.timed_batches], minilm.tokenizer, SIZE, sort=False
        ),
        call=sst2.logits,
        labels=sst2.loss,
        loss=_to_logits(model),
        score=sst2.accuracy,
        # Early layers have not yet gathered what matters where it is looked at; of the last one the
        # head reads [CLS] only.
        kept=(1.0, 0.95, 0.7, 0.45, 0.25, 0.04),
    )


def _to_logits(teacher):
    """Cross-entropy with the distribution of the classifier that drops nothing."""

    def loss(model, batch):
        wanted = _answer(teacher, batch, sst2.logits).softmax(dim=1)
        return nn.functional.cross_entropy(sst2.logits(model, batch), wanted)

    return loss


def _classifier(minilm, batches, given, work):
    steps = 10 if given.quick else given.dense_steps
    place = work / f"sst2-{steps}-steps-{given.lr:g}"
    if place.is_dir():
        options.progress(f"the classifier is read from {place}")
        return gossamer.load(place)
    model = sst2.classifier(minilm.model)
    model.bert.embeddings.requires_grad_(False)
    train_without_dropping(model, batches, sst2.loss, steps, given.lr, "classifier")
    gossamer.save(model, place)
    return model


def train_without_dropping(model, batches, loss, steps, lr, name):
    """In place, with the loop of token pruning: thresholds of 0 drop nothing."""
    stock = find_encoder(model)
    encoder = add_token_pruning(model, 0.0)
    plan = TokenPlan(penalty=0.0, soft_steps=0, hard_steps=steps, lr=lr)
    train_token_pruning(model, batches, loss, plan, on_step=show(name))
    replace_module(model, encoder, stock)
    model.eval()


def show(name):
    """Prints every twentieth step."""
    start = time.process_time()

    def on_step(stage, step, loss, kept):
        if step % 20 == 19:
            options.progress(
                f"{name} {stage} {step + 1}: loss {loss:.4f}, kept"
                f" {' '.join(f'{part:.2f}' for part in kept)},"
                f" {time.process_time() - start:.0f} s"
            )

    return on_step


def _drawn(rows, draw, few, given):
    draw.shuffle(rows)
    return rows[:few] if given.quick else rows


def _answer(teacher, batch, call):
    """The teacher's answer, computed once."""
    if "teacher" not in batch:
        with torch.no_grad():
            batch["teacher"] = call(teacher, batch)
    return batch["teacher"]
