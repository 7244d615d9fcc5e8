# SPDX-License-Identifier: Apache-2.0
"""From a user's file of texts to calibration batches, and a measure of quality for one model.

`calibration_batches` draws what a recipe asks for, `pair_loss` makes a loss of scored pairs, and
`quality_of` finds the `Quality` that suits a model. `embed` gives a model's vectors, `agreement`
says how far two models find the same sentences alike.

A decoder gets windows of a text stream and is measured by its perplexity on windows that
calibration did not see. An encoder gets sentences and is measured by the rank correlation of its
similarities with people's scores, or, without scores, with those of the dense model.

Legend: N texts or windows, T tokens, V vocabulary, B batch, D width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from gossamer.data.files import Pair, Texts, check_scores
from gossamer.data.token_ids import draw, padded_batches, sentences, windows
from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.nn.families.text import is_decoder
from gossamer.pruning.calibration.flow import evaluating
from gossamer.pruning.gradients.losses import output_of
from gossamer.recipes import Calibration
from gossamer.running.text import pool
from gossamer.runs.stages.recover_data import samples_of_pairs, takes_names

__all__ = ["Quality", "agreement", "calibration_batches", "embed", "pair_loss", "quality_of"]

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


_SCORED_TOKENS = 4096


def perplexity(model: nn.Module, ids_NT: torch.Tensor) -> float:
    """Exp of the mean negative log-likelihood of all but the first token of every window."""
    total, count = 0.0, 0
    with evaluating(model), torch.no_grad():
        for ids_T in ids_NT:
            logits_TV = output_of(model(input_ids=ids_T.unsqueeze(0)))[0, :-1].float()
            total += float(cross_entropy(logits_TV, ids_T[1:], reduction="sum"))
            count += len(ids_T) - 1
    if not count:
        raise InputError("perplexity: needs windows of at least two tokens.")
    mean = total / count
    return math.exp(mean) if mean < 700 else math.inf


def pair_correlation(
    model: nn.Module, pairs: Sequence[Pair], tokenizer: Any, max_tokens: int
) -> float:
    """Spearman's rank correlation of cosines with scores."""
    texts = [pair.first for pair in pairs] + [pair.second for pair in pairs]
    vectors_ND = embed(model, sentences(texts, tokenizer, max_tokens))
    cosines = (vectors_ND[: len(pairs)] * vectors_ND[len(pairs) :]).sum(dim=1)
    return rank_correlation(cosines, torch.tensor([pair.score for pair in pairs]))


def embed(model: nn.Module, ids: Sequence[torch.Tensor]) -> torch.Tensor:
    """Unit vectors [N, D]: the mean of the last hidden state over the tokens of each text."""
    parts: dict[int, torch.Tensor] = {}
    with evaluating(model), torch.no_grad():
        for members, inputs in padded_batches(ids, _SCORED_TOKENS):
            parts |= dict(zip(members, mean_vectors(model, inputs), strict=True))
    return torch.stack([parts[i] for i in range(len(ids))])


def mean_vectors(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Unit vectors [B, D] of one batch; differentiable."""
    hidden_BTD = getattr(model(**inputs), "last_hidden_state", None)
    if hidden_BTD is None:
        raise InputError(
            "quality: the model gives no last_hidden_state to compare sentences with. Load the"
            " bare encoder, or evaluate with gossamer.sparsify(evaluate=...)."
        )
    return normalize(pool(hidden_BTD, inputs["attention_mask"]), dim=1)


def agreement(first_ND: torch.Tensor, second_ND: torch.Tensor) -> float:
    """Rank correlation of the pairwise cosines of two sets of embeddings; it is not accuracy."""
    pairs = torch.triu_indices(len(first_ND), len(first_ND), offset=1)
    cosines = [
        (vectors.double() @ vectors.double().T)[pairs[0], pairs[1]]
        for vectors in (first_ND, second_ND)
    ]
    return rank_correlation(*cosines)


def rank_correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    """Spearman's coefficient; ties share their mean rank."""
    ranks = [average_ranks(values) for values in (first, second)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def average_ranks(values: torch.Tensor) -> torch.Tensor:
    """Rank of every value in ascending order, float64; equal values share their mean rank."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ranks: torch.Tensor = (counts.cumsum(0).double() - (counts.double() - 1) / 2)[inverse]
    return ranks
