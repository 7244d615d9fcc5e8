# SPDX-License-Identifier: Apache-2.0
"""How many tokens are left in each layer, and what that saves.

Legend: n tokens a layer gets, m tokens it keeps, d width, F feed-forward width.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.token_attention import first_tokens
from gossamer.nn.token_pruning import TokenTrace, token_encoder


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
    encoder = token_encoder(model)
    was_training, was_phase = model.training, encoder.phase
    model.eval()
    encoder.phase = "hard"
    lengths, kept = [], []
    try:
        for batch in batches:
            with torch.inference_mode(), encoder.recording() as traces:
                call(model, batch)
            lengths += [trace.real.sum(dim=1) for trace in traces]
            kept += [_counts(trace) for trace in traces]
    finally:
        model.train(was_training)
        encoder.phase = was_phase
    layer: Any = encoder.layer[0]
    down = layer.output.dense
    return _cost(torch.cat(lengths), torch.cat(kept, dim=1), down.out_features, down.in_features)


def _counts(trace: TokenTrace) -> torch.Tensor:
    return torch.stack([keep_BT.sum(dim=1) for keep_BT in trace.keep])


def _cost(lengths_S: torch.Tensor, kept_LS: torch.Tensor, width: int, filters: int) -> TokenCost:
    m_LS = kept_LS.double()
    n_LS = torch.cat([lengths_S.double().unsqueeze(0), m_LS[:-1]])
    dense_LS = lengths_S.double().expand_as(n_LS)
    kept_L = m_LS.sum(dim=1) / lengths_S.sum()
    return TokenCost(
        kept=kept_L.tolist(),
        mean_kept=float(kept_L.mean()),
        macs=float(_macs(n_LS, m_LS, width, filters) / _macs(dense_LS, dense_LS, width, filters)),
        tokens=float(lengths_S.double().mean()),
    )


def _macs(n_LS: torch.Tensor, m_LS: torch.Tensor, d: int, filters: int) -> torch.Tensor:
    return (4 * n_LS * d**2 + 2 * n_LS**2 * d + 2 * m_LS * d * filters).sum()


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
    was_training, was_phase = model.training, encoder.phase
    model.eval()
    encoder.phase = "hard"
    try:
        with torch.no_grad():
            encoder.thresholds.zero_()
            for layer, part in enumerate(kept):
                with encoder.recording() as traces:
                    for batch in batches:
                        call(model, batch)
                encoder.thresholds[layer] = _threshold(traces, layer, part)
    finally:
        model.train(was_training)
        encoder.phase = was_phase
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
