# SPDX-License-Identifier: Apache-2.0
"""How few neurons several tokens in a row need together, measured on data.

Legend: T tokens, N neurons.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.nn.relufication import find_feed_forward

__all__ = ["Aggregated", "measure_aggregated_sparsity"]


@dataclass(frozen=True)
class Aggregated:
    """Windows of one length.

    Attributes:
        window: tokens in a row.
        untouched: share of neurons that are zero for all of them, the mean of all blocks.
        by_chance: what it would be if tokens had nothing to do with each other.
    """

    window: int
    untouched: float
    by_chance: float

    def speculation(self, draft_cost: float) -> float:
        """How many times as fast speculative decoding becomes if it checks `window` tokens at once.

        A pass of the model costs 1 and one of the draft `draft_cost`: (c w + 1) / (c w + 1 - s).
        """
        plain = draft_cost * self.window + 1
        return plain / (plain - self.untouched)


def measure_aggregated_sparsity(
    model: nn.Module,
    batches: Iterable[Any],
    call: Callable[[nn.Module, Any], object],
    windows: Sequence[int] = (1, 2, 4, 8, 16),
) -> list[Aggregated]:
    """Count neurons that no token of a window has, in eval mode.

    Args:
        model: blocks are those of `nn.relufication.find_feed_forward`.
        batches: texts, [B, T] each.
        call: `call(model, batch)` runs the model.
        windows: lengths; what is left of a text behind its last whole window is not counted.
    """
    blocks = find_feed_forward(model)
    if not blocks:
        raise TargetError(f"{type(model).__name__} has no feed-forward block of a known family.")
    if min(windows, default=0) < 1:
        raise InputError(f"windows must be 1 token or more, got {list(windows)}.")
    untouched = dict.fromkeys(windows, 0.0)
    chance = dict.fromkeys(windows, 0.0)
    counts = dict.fromkeys(windows, 0)

    def look(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        zero_TN = args[0].detach().flatten(0, -3) == 0 if args[0].ndim > 2 else args[0][None] == 0
        share = float(zero_TN.float().mean())
        for window in windows:
            whole = zero_TN.shape[1] // window * window
            if not whole:
                continue
            parts = zero_TN[:, :whole].reshape(len(zero_TN), -1, window, zero_TN.shape[2]).all(2)
            untouched[window] += float(parts.float().mean())
            chance[window] += share**window
            counts[window] += 1

    with torch.no_grad(), ExitStack() as afterwards:
        for block in blocks:
            afterwards.enter_context(block.down.register_forward_pre_hook(look))
        afterwards.callback(model.train, model.training)
        model.eval()
        for batch in batches:
            call(model, batch)
    short = [window for window in windows if not counts[window]]
    if short:
        raise InputError(f"no text is as long as a window of {short[0]} tokens.")
    return [Aggregated(w, untouched[w] / counts[w], chance[w] / counts[w]) for w in windows]
