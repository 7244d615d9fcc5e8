# SPDX-License-Identifier: Apache-2.0
"""From a user's file to calibration batches and a measure of quality for one model.

A decoder gets windows of a text stream and is measured by its perplexity on windows that
calibration did not see. An encoder gets sentences and is measured by the rank correlation of its
similarities with people's scores, or, without scores, with those of the dense model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gossamer.data.files import Texts, check_scores
from gossamer.data.token_ids import draw, padded_batches, sentences, windows
from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.nn.families.text import is_decoder
from gossamer.recipes import Calibration
from gossamer.runs.calibration.quality import (
    agreement,
    embed,
    mean_vectors,
    pair_correlation,
    perplexity,
)
from gossamer.runs.stages.recover_data import samples_of_pairs, takes_names

# Tokens of one batch: long enough for fast products, short enough to be held many times.
_BATCH_TOKENS = 2048
# Pairs of one batch give one gradient: about 32 of them.
_PAIR_TOKENS = 512
_MAX_EVALUATED = 64
_MIN_HELD_OUT = 4


@dataclass(frozen=True)
class Quality:
    """How good a model is.

    Attributes:
        name: what the number is, for tables.
        lower_is_better: perplexity, as opposed to a correlation.
        measure: the number for a model.
        data: what it was measured on.
        whole: what a hundred per cent are in the unit of the number; None where only ratios mean
            something, as for a perplexity.
    """

    name: str
    lower_is_better: bool
    measure: Callable[[nn.Module], float]
    data: str
    whole: float | None = None

    def lost(self, dense: float, quality: float) -> float:
        """What is given up, as a fraction: of the whole, or of the dense number.

        A model whose quality is no number has lost everything; a dense one cannot be compared with.
        """
        whole = dense if self.whole is None else self.whole
        if not math.isfinite(dense) or whole == 0:
            raise InputError(
                f"{self.name} of the dense model is {dense:g} on {self.data}, so nothing can be"
                " compared with it. Give other data to measure on, or another metric."
            )
        if math.isnan(quality):
            return math.inf
        return (quality - dense if self.lower_is_better else dense - quality) / whole


def calibration_batches(
    model: nn.Module, samples: Texts, tokenizer: Any, settings: Calibration
) -> list[Batch]:
    """The drawn part of a file as batches for `model`."""
    if is_decoder(model) or samples.ids_NT is not None:
        ids_NT = windows(samples, tokenizer, settings.tokens)
        chosen = ids_NT[draw(len(ids_NT), settings.samples, settings.seed)]
        return [
            Batch({"input_ids": part} if takes_names(model) else part)
            for part in torch.split(chosen, max(1, _BATCH_TOKENS // settings.tokens))
        ]
    if samples.pairs:
        numbers = draw(len(samples.pairs), settings.samples, settings.seed)
        pairs = [samples.pairs[number] for number in numbers]
        drawn = samples_of_pairs(pairs, tokenizer, settings.tokens)
        # Pairs of like length together.
        longest = [torch.empty(length // 2) for length in drawn.lengths]
        groups = padded_batches(longest, _PAIR_TOKENS)
        return [replace(drawn.make(members), samples=None) for members, _ in groups]
    texts = [samples.texts[i] for i in draw(len(samples.texts), settings.samples, settings.seed)]
    return [
        Batch(inputs, inputs["attention_mask"].bool())
        for _, inputs in padded_batches(sentences(texts, tokenizer, settings.tokens), _BATCH_TOKENS)
    ]


def pair_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean squared error of the cosines of pairs against their labels."""
    if batch.labels is None:
        raise InputError("the loss of pairs needs their scores.")
    first_BD, second_BD = mean_vectors(model, batch.arguments).chunk(2)
    return ((first_BD * second_BD).sum(dim=1) - batch.labels).square().mean()


def quality_of(
    model: nn.Module, samples: Texts, tokenizer: Any, settings: Calibration, *, held_out: bool
) -> Quality | None:
    """What can be measured with a file; None where nothing can.

    Args:
        model: the dense model; an encoder's own similarities are the reference without scores.
        samples: the file.
        tokenizer: of the model.
        settings: windows, and with `held_out` which ones calibration uses.
        held_out: the file is the calibration data itself: only what it does not use is measured.
    """
    if is_decoder(model):
        ids_NT = windows(samples, tokenizer, settings.tokens)
        used = draw(len(ids_NT), settings.samples, settings.seed) if held_out else ()
        left = sorted(set(range(len(ids_NT))) - set(used))
        if held_out and len(left) < _MIN_HELD_OUT:
            return None
        count = min(len(left), _MAX_EVALUATED)
        # Evenly spread.
        chosen = ids_NT[[left[i * len(left) // count] for i in range(count)]]
        where = f"{len(chosen)} windows of {settings.tokens} tokens, {samples.path.name}"
        return Quality("perplexity", True, lambda m: perplexity(m, chosen), where)
    if samples.ids_NT is not None:
        return None
    if samples.pairs:
        check_scores(samples)
        return Quality(
            "Spearman x 100",
            False,
            lambda m: 100 * pair_correlation(m, samples.pairs, tokenizer, settings.tokens),
            f"{len(samples.pairs)} pairs, {samples.path.name}",
            100.0,
        )
    texts = samples.texts[: 4 * _MAX_EVALUATED]
    if len(texts) < _MIN_HELD_OUT:
        return None
    ids = sentences(texts, tokenizer, settings.tokens)
    dense_ND = embed(model, ids)
    return Quality(
        "agreement with dense (rank correlation)",
        False,
        lambda m: agreement(dense_ND, embed(m, ids)),
        f"{len(texts)} lines, {samples.path.name}",
        1.0,
    )
