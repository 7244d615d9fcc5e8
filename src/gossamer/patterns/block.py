# SPDX-License-Identifier: Apache-2.0
"""block:RxC: weights are kept or dropped in whole rectangles.

Legend: R rows, K columns; the grid has P = R/rows by Q = K/columns blocks.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gossamer.patterns.base import BuiltinPattern
from gossamer.patterns.selection import keep_largest, kept_count, summable


@dataclass(frozen=True)
class Block(BuiltinPattern):
    """Rectangles of `rows` outputs by `columns` inputs, each kept or dropped as a whole."""

    form: ClassVar[str] = "block"
    rows: int
    columns: int

    @property
    def tile(self) -> tuple[int, int]:
        """One block."""
        return self.rows, self.columns

    def _shape_fault(self, shape: tuple[int, ...], padded: tuple[int, int]) -> str:
        return (
            f"needs rows divisible by {self.rows} and columns divisible by {self.columns}. Options:"
            f" pad to {list(padded)}, a block whose sizes divide the shape, or add the layer to"
            " ignore."
        )

    def _chosen(self, scores_RK: torch.Tensor, density: float) -> torch.Tensor:
        """Keep the round(density * blocks) blocks with the highest sums of scores."""
        sums_PQ = self._tiled(summable(scores_RK)).sum(dim=(1, 3))
        num_kept = kept_count(density, sums_PQ.numel())
        kept_PQ = keep_largest(sums_PQ.flatten(), num_kept).view(sums_PQ.shape)
        return kept_PQ.repeat_interleave(self.rows, 0).repeat_interleave(self.columns, 1)

    def _mask_fault(self, mask_RK: torch.Tensor) -> str:
        """A block that is kept in part."""
        counts_PQ = self._tiled(mask_RK).sum(dim=(1, 3))
        wrong = ((counts_PQ != 0) & (counts_PQ != self.rows * self.columns)).nonzero()
        if not len(wrong):
            return ""
        down, across = wrong[0].tolist()
        return (
            f"keeps or drops whole blocks, but the block at row {down * self.rows}, column"
            f" {across * self.columns} keeps {int(counts_PQ[down, across])} of"
            f" {self.rows * self.columns} ({len(wrong)} blocks are wrong). Project the scores again"
            " or name another pattern."
        )

    def kept_blocks(self, mask_RK: torch.Tensor) -> torch.Tensor:
        """Bool [P, Q] of a legal mask: which blocks are kept."""
        return mask_RK[:: self.rows, :: self.columns]

    def _tiled(self, matrix_RK: torch.Tensor) -> torch.Tensor:
        down, across = self.grid(matrix_RK.shape)
        return matrix_RK.reshape(down, self.rows, across, self.columns)
