# SPDX-License-Identifier: Apache-2.0
"""Searches on text: sentences, pairs with scores, labelled texts, a stream for language models."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gossamer.data.files import Texts
from gossamer.data.token_ids import padded_batches, sentences
from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.nn.families.text import is_decoder
from gossamer.pruning.gradients import Loss
from gossamer.pruning.gradients.losses import next_token_loss, output_of
from gossamer.recipes import Calibration
from gossamer.runs.calibration import Quality, calibration_batches, pair_loss, quality_of
from gossamer.runs.stages.recover_data import RecoverySamples, samples_of_file
from gossamer.search.workloads.workload import (
    Measure,
    Workload,
    accuracy_quality,
    split_data,
    typical_ids,
    user_quality,
)

_TOKENS = 128
_EVALUATED_TOKENS = 4096
# What recovery matches: the vectors of an encoder, the distribution of everything with logits.
_VECTORS = {"embeddings": 1.0, "similarity": 10.0}
_LOGITS = {"logits": 1.0}
# Part of the task's own loss, where there are labels to learn from.
_LABELS = {"hardness": 0.5}


def text_workload(
    model: nn.Module,
    data: Texts,
    *,
    tokenizer: Any,
    choose: Texts | None = None,
    report: Texts | None = None,
    metric: Measure | None = None,
) -> Workload:
    """Split the data where there are no files for the parts, and make an input to time."""
    if data.ids_NT is not None:
        raise InputError(f"{data.path}: shrink reads text, pairs or labels, not token tensors.")
    training, choosing, reporting = split_texts(data, choose, report)
    tokens, calibration = _TOKENS, Calibration(tokens=_TOKENS, samples=512)
    first, last = (
        _quality(model, part, tokenizer, calibration, metric) for part in (choosing, reporting)
    )
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    if vocabulary is None:
        raise InputError(
            f"{type(model).__name__}: shrink reads text for transformers models with a vocabulary."
        )
    decoder = is_decoder(model)
    loss: Loss | None = None
    terms = _VECTORS
    if decoder:
        loss, terms = next_token_loss, _LOGITS
    elif training.labels:
        loss, terms = label_loss, {**_LOGITS, **_LABELS}
    elif training.pairs:
        loss, terms = pair_loss, {**_VECTORS, **_LABELS}
    lines = "".join(f"{text}\n" for text in training.texts)
    scores = [pair.score for pair in training.pairs] + list(training.labels)
    ids_BT = typical_ids(sentences(training.texts[:tokens], tokenizer, tokens), vocabulary, tokens)
    classifies = bool(training.labels) and not decoder

    def samples() -> RecoverySamples:
        plain = samples_of_file(model, training, tokenizer, tokens)
        labels = torch.tensor(training.labels)

        def make(numbers: Sequence[int]) -> Batch:
            return replace(plain.make(numbers), labels=labels[list(numbers)])

        return replace(plain, make=make) if classifies else plain

    def batches() -> list[Batch]:
        if not classifies:
            return calibration_batches(model, training, tokenizer, calibration)
        held_out = 1 - min(0.99, calibration.samples / len(training.texts))
        return list(samples().split(held_out, calibration.seed)[0].in_order(32))

    timed = {"input_ids": ids_BT}
    if not decoder:
        timed["attention_mask"] = torch.ones_like(ids_BT)
    return Workload(
        model=model,
        batches=batches,
        samples=samples,
        loss=loss,
        terms=terms,
        choosing=first,
        reporting=last,
        timed=Batch(timed),
        timed_text=f"1 x {tokens} tokens",
        tokens=tokens,
        digest=hashlib.sha256(f"{lines}{scores}".encode()).hexdigest(),
        kind="decoder" if decoder else "encoder",
        tokenizer=tokenizer,
        texts={"training": training, "choosing": choosing, "reporting": reporting},
    )


def label_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross entropy of the logits [B, classes] with the labels."""
    if batch.labels is None:
        raise InputError("the loss of a classifier needs labels.")
    return cross_entropy(output_of(batch.run(model)).float(), batch.labels)


def _quality(
    model: nn.Module, data: Texts, tokenizer: Any, settings: Calibration, metric: Measure | None
) -> Quality:
    if metric is not None:
        return user_quality(metric, data, data.path.name)
    if data.labels and not is_decoder(model):
        ids = sentences(data.texts, tokenizer, settings.tokens)
        labels = torch.tensor(data.labels)
        return accuracy_quality(
            lambda: (
                Batch(inputs, labels=labels[members])
                for members, inputs in padded_batches(ids, _EVALUATED_TOKENS)
            ),
            f"{len(ids)} texts, {data.path.name}",
        )
    found = quality_of(model, data, tokenizer, settings, held_out=False)
    if found is None:
        raise InputError(
            f"{data.path}: there is nothing to measure quality with. Give sentences, pairs with"
            " scores, texts with labels, or a text for a language model."
        )
    return found


def split_texts(
    data: Texts, choose: Texts | None, report: Texts | None
) -> tuple[Texts, Texts, Texts]:
    """Texts to fit to, to choose by and to report; parts that are not given are set aside."""
    count = len(data.pairs or data.texts)
    return split_data(count, partial(_chosen, data), (choose, report), str(data.path))


def _chosen(data: Texts, numbers: Sequence[int]) -> Texts:
    if data.pairs:
        pairs = tuple(data.pairs[i] for i in numbers)
        texts = tuple(text for pair in pairs for text in (pair.first, pair.second))
        return replace(data, pairs=pairs, texts=texts, stream="\n".join(texts))
    texts = tuple(data.texts[i] for i in numbers)
    labels = tuple(data.labels[i] for i in numbers) if data.labels else ()
    return replace(data, texts=texts, labels=labels, stream="\n".join(texts))
