# SPDX-License-Identifier: Apache-2.0
"""Blocks of a gradient that travel together, and what of each has not been sent yet.

Legend: R blocks, N elements of a block.
"""

from dataclasses import dataclass

import torch
from torch import nn

from gossamer.nn.layer_kinds import sparse_layers
from gossamer.ops.training import absorb

# Kept values have no rows; runs of this many travel together. Below some 100 the scores of the
# blocks, which travel too, would be felt beside a density of a few percent.
VALUES_PER_BLOCK = 256


@dataclass(frozen=True)
class BlockCut:
    """How a parameter is cut: R blocks of N elements, then a tail that always travels."""

    num_blocks: int
    block_size: int
    tail: int

    @property
    def blocked(self) -> int:
        """Elements in blocks."""
        return self.num_blocks * self.block_size


def cut_parameters(model: nn.Module) -> dict[str, BlockCut]:
    """How each trainable parameter is cut, by name.

    A matrix or a convolution is cut into the rows of its first dimension, the kept values of a
    compact layer into runs of `VALUES_PER_BLOCK`; biases and norms are tails as a whole.
    """
    values = {id(layer.values) for _, layer in sparse_layers(model, "compact")}
    cuts = {}
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        size = param.numel()
        if id(param) in values:
            full = size // VALUES_PER_BLOCK
            cuts[name] = BlockCut(full, VALUES_PER_BLOCK, size - full * VALUES_PER_BLOCK)
        elif param.ndim >= 2 and size:
            cuts[name] = BlockCut(len(param), size // len(param), 0)
        else:
            cuts[name] = BlockCut(0, 1, size)
    return cuts


class Residual:
    """The sum of gradients of one parameter that have not been sent, on this rank.

    Args:
        cut: how the parameter is cut.
        like: the parameter; 16-bit ones get a float32 residual.
    """

    def __init__(self, cut: BlockCut, like: torch.Tensor) -> None:
        dtype = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
        self.cut = cut
        shape = (cut.num_blocks, cut.block_size)
        self.held_RN = torch.zeros(shape, dtype=dtype, device=like.device)
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

    def copy(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Copy blocks into `out` [rows * N]."""
        torch.index_select(self.held_RN, 0, rows, out=out.view(-1, self.cut.block_size))

    def clear(self, rows: torch.Tensor) -> None:
        """Forget blocks, which have been sent."""
        self.held_RN.index_fill_(0, rows, 0)
