# SPDX-License-Identifier: Apache-2.0
"""How good a language model or a sentence encoder is, as one number.

Legend: N texts or windows, T tokens, V vocabulary, B batch, D width.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from gossamer.data.files import Pair
from gossamer.data.token_ids import padded_batches, sentences
from gossamer.errors import InputError
from gossamer.pruning.calibration.flow import evaluating
from gossamer.pruning.gradients.losses import output_of
from gossamer.running.text import pool

_BATCH_TOKENS = 4096


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
        for members, inputs in padded_batches(ids, _BATCH_TOKENS):
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
