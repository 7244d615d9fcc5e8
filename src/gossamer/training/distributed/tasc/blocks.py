# SPDX-License-Identifier: Apache-2.0
"""Blocks of a gradient that travel together, what of each has not been sent, which are sent next.

The choice is a pure function of what all ranks know, so that all choose alike.

Legend: R blocks (where blocks are chosen, of all parameters, one after another), N elements of a
block.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gossamer.nn.layer_kinds import sparse_layers
from gossamer.ops.training.optimizer_passes import absorb

# Kept values have no rows; runs of this many travel together. Below some 100 the scores of the
# blocks, which travel too, would be felt beside a density of a few percent.
VALUES_PER_BLOCK = 256
# Part of the budget that goes to the oldest blocks once they have half of the age limit: without it
# blocks that were last sent together would all reach the limit in the same step.
_OLDEST_SHARE = 0.25


class BlockCut(NamedTuple):
    """How a parameter is cut: R blocks of N elements, then a tail that always travels."""

    num_blocks: int
    block_size: int
    tail: int

    @property
    def blocked(self) -> int:
        """Elements in blocks."""
        return self.num_blocks * self.block_size

    def in_blocks(self, flat: torch.Tensor) -> torch.Tensor:
        """The blocks [R, N] of a flat tensor, as a view."""
        return flat[: self.blocked].view(-1, self.block_size)


class BlockedParameter:
    """A parameter in blocks, and the sum of its gradients that have not been sent, on this rank.

    Args:
        name: of the parameter.
        index: of the parameter among all.
        cut: how it is cut.
        start: where its blocks begin among those of all parameters.
        param: 16-bit ones get a float32 residual.
    """

    def __init__(
        self, name: str, index: int, cut: BlockCut, start: int, param: torch.Tensor
    ) -> None:
        self.name, self.index, self.cut, self.param = name, index, cut, param
        self.span = slice(start, start + cut.num_blocks)
        dtype = torch.promote_types(param.dtype, torch.float32)
        self.held_RN = param.new_zeros(cut.num_blocks, cut.block_size, dtype=dtype)
        self._fresh_R = torch.zeros_like(self.held_RN[:, 0])

    def absorb(self, gradient_RN: torch.Tensor, scores_R: torch.Tensor) -> torch.Tensor:
        """Add a gradient; its own mean square in each block, valid until the next call.

        Blocks near one in which a number is not finite keep what they had, and the score of that
        one is not finite.

        Args:
            gradient_RN: what is added.
            scores_R: becomes the mean square of each block afterwards.
        """
        absorb(gradient_RN, self.held_RN, self._fresh_R, scores_R)
        return self._fresh_R


def blocked_parameters(model: nn.Module) -> list[BlockedParameter]:
    """All trainable parameters of a model, in its order.

    A matrix or a convolution is cut into the rows of its first dimension, the kept values of a
    compact layer into runs of `VALUES_PER_BLOCK`; biases and norms are tails as a whole.
    """
    values = {id(layer.values) for _, layer in sparse_layers(model, "compact")}
    entries: list[BlockedParameter] = []
    start = 0
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        size = param.numel()
        cut = BlockCut(0, 1, size)
        if id(param) in values:
            full, tail = divmod(size, VALUES_PER_BLOCK)
            cut = BlockCut(full, VALUES_PER_BLOCK, tail)
        elif param.ndim >= 2 and size:
            cut = BlockCut(len(param), size // len(param), 0)
        entries.append(BlockedParameter(name, len(entries), cut, start, param))
        start += cut.num_blocks
    return entries


def choose_blocks(
    scores_R: torch.Tensor,
    sizes_R: torch.Tensor,
    ages_R: torch.Tensor,
    *,
    budget: int,
    max_age: int,
) -> torch.Tensor:
    """True for the blocks to send: the best scores per element within a budget of elements.

    Args:
        scores_R: gain per element.
        sizes_R: elements of each block.
        ages_R: steps that wait in each block by the time it would be sent, this one included.
        budget: elements that may be sent; at least one block is.
        max_age: blocks of this age are sent whatever they score, and beyond the budget if need be.
    """
    scores, sizes, ages = scores_R.double().numpy(), sizes_R.numpy(), ages_R.numpy()
    chosen = ages >= max_age
    left = budget - int(sizes[chosen].sum())
    elderly = ages * 2 >= max_age
    if elderly.any():
        left -= _take(chosen, np.where(elderly, ages, 0), sizes, int(left * _OLDEST_SHARE))
    _take(chosen, scores, sizes, left)
    if len(chosen) and not chosen.any():
        chosen[scores.argmax()] = True
    return torch.from_numpy(chosen)


def _take(chosen: NDArray[Any], scores: NDArray[Any], sizes: NDArray[Any], budget: int) -> int:
    """Choose the highest positive scores that fit; elements spent. Ties go to the first block."""
    able = np.flatnonzero((scores > 0) & ~chosen)
    if budget <= 0 or not len(able):
        return 0
    # No more than this many fit: the others need not be sorted.
    most = budget // int(sizes[able].min())
    if most < len(able):
        found, least = scores[able], len(able) - most - 1
        able = able[found >= np.partition(found, least)[least]]
    order = able[np.argsort(-scores[able], kind="stable")]
    spent = sizes[order].cumsum()
    count = int(np.searchsorted(spent, budget, side="right"))
    chosen[order[:count]] = True
    return int(spent[count - 1]) if count else 0
