# SPDX-License-Identifier: Apache-2.0
"""How many tokens are left in each layer, what that saves, and thresholds read off data.

Thresholds for a wanted share of tokens are a start for training that is near its end: a few hundred
steps cannot carry thresholds from nothing to where tokens are dropped. Without training they are
the baseline of hand-set thresholds.

Legend: n tokens a layer gets, m tokens it keeps, d width, F feed-forward width.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.tokens import TokenPrunedEncoder, TokenTrace, token_encoder
from gossamer.nn.tokens.bert_layers import first_tokens


@dataclass(frozen=True)
class TokenCost:
    """Over some batches.

    Attributes:
        kept: fraction of tokens left after each layer.
        mean_kept: their mean.
        macs: multiply-adds of all layers as a fraction of those without dropping: per layer
            4 n d^2 + 2 n^2 d for attention and 2 m d F for the feed-forward part.
        tokens: mean length of a sequence.
    """

    kept: list[float]
    mean_kept: float
    macs: float
    tokens: float


def measure_tokens(
    model: nn.Module, batches: Iterable[Any], call: Callable[[nn.Module, Any], object]
) -> TokenCost:
    """Run `call(model, batch)` on all batches, hard, and count; the model is as before after it."""
    all_lengths, all_kept = [], []
    with _hard(model) as encoder:
        for batch in batches:
            with torch.inference_mode(), encoder.recording() as traces:
                call(model, batch)
            all_lengths += [trace.real.sum(dim=1) for trace in traces]
            all_kept += [torch.stack([one.sum(dim=1) for one in trace.keep]) for trace in traces]
    lengths_S, m_LS = torch.cat(all_lengths).double(), torch.cat(all_kept, dim=1).double()
    n_LS = torch.cat([lengths_S.unsqueeze(0), m_LS[:-1]])
    dense_LS = lengths_S.expand_as(n_LS)
    kept_L = m_LS.sum(dim=1) / lengths_S.sum()
    layer: Any = encoder.layer[0]
    d, filters = layer.output.dense.out_features, layer.output.dense.in_features
    macs, dense_macs = (
        (4 * n * d**2 + 2 * n**2 * d + 2 * m * d * filters).sum()
        for n, m in ((n_LS, m_LS), (dense_LS, dense_LS))
    )
    return TokenCost(
        kept=kept_L.tolist(),
        mean_kept=float(kept_L.mean()),
        macs=float(macs / dense_macs),
        tokens=float(lengths_S.mean()),
    )


@contextmanager
def _hard(model: nn.Module) -> Iterator[TokenPrunedEncoder]:
    """The encoder of `model`, which drops tokens and is in eval mode inside."""
    encoder = token_encoder(model)
    was_training, was_phase = model.training, encoder.phase
    model.eval()
    encoder.phase = "hard"
    try:
        yield encoder
    finally:
        model.train(was_training)
        encoder.phase = was_phase


def set_thresholds(
    model: nn.Module,
    batches: Sequence[Any],
    call: Callable[[nn.Module, Any], object],
    kept: Sequence[float],
) -> list[float]:
    """Set thresholds so that the fraction `kept[l]` of tokens is left after layer l.

    Layer after layer, because what a layer drops changes importance in the next: one pass over
    `batches` each. Fractions must not rise; the first token of each sequence stays in any case.
    """
    encoder = token_encoder(model)
    layers = len(encoder.layer)
    if len(kept) != layers or not all(0 <= part <= 1 for part in kept):
        raise InputError(
            f"set_thresholds: kept must hold {layers} fractions between 0 and 1, got {list(kept)}."
        )
    if any(after > before for before, after in pairwise(kept)):
        raise InputError(f"set_thresholds: dropped tokens do not return, but kept is {list(kept)}.")
    if not batches:
        raise InputError("set_thresholds: batches is empty.")
    with _hard(model), torch.no_grad():
        encoder.thresholds.zero_()
        for layer, part in enumerate(kept):
            with encoder.recording() as traces:
                for batch in batches:
                    call(model, batch)
            encoder.thresholds[layer] = _threshold(traces, layer, part)
    found: list[float] = encoder.thresholds.tolist()
    return found


def _threshold(traces: Sequence[TokenTrace], layer: int, part: float) -> float:
    """The largest importance that lets `part` of all real tokens through."""
    scores, real, first = [], 0, 0
    for trace in traces:
        before_BT = trace.keep[layer - 1] if layer else trace.real
        first_BT = first_tokens(trace.real)
        scores.append(trace.importance[layer][before_BT & ~first_BT])
        real += int(trace.real.sum())
        first += len(first_BT)
    ordered = torch.cat(scores).sort(descending=True).values
    count = min(max(round(part * real) - first, 0), len(ordered))
    if count == len(ordered):
        return 0.0
    # Halfway to the first that goes, so that rounding does not decide.
    last = float(ordered[count - 1]) if count else 2 * float(ordered[0]) + 1e-6
    return (last + float(ordered[count])) / 2
