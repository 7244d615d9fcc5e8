# SPDX-License-Identifier: Apache-2.0
"""Thresholds read off data, for a wanted share of tokens after each layer.

A start for training that is near its end: a few hundred steps cannot carry thresholds from nothing
to where tokens are dropped. Without training it is the baseline of hand-set thresholds.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.token_attention import first_tokens
from gossamer.nn.token_pruning import TokenTrace, token_encoder


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
