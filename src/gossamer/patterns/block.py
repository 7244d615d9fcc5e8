# SPDX-License-Identifier: Apache-2.0
"""block:RxC: weights are kept or dropped in whole rectangles.

Legend: R rows, K columns; the grid has P = R/rows by Q = K/columns blocks.
"""

from dataclasses import dataclass

import torch

from gossamer.errors import PatternError
from gossamer.patterns.base import Pattern, check_density, check_mask, check_scores, kept_count
from gossamer.patterns.select import keep_largest, summable
from gossamer.patterns.syntax import check_block, read_block


@dataclass(frozen=True)
class Block(Pattern):
    """Rectangles of `rows` outputs by `columns` inputs, each kept or dropped as a whole."""

    rows: int
    columns: int

    def __post_init__(self) -> None:
        check_block(self.rows, self.columns)

    @classmethod
    def parse(cls, text: str) -> "Block":
        """Read `block:RxC`."""
        return cls(*read_block(text))

    @property
    def fixed_density(self) -> float | None:
        """None: any number of blocks may be kept."""
        return None

    def grid(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Blocks down and across a fitting shape."""
        return shape[0] // self.rows, shape[1] // self.columns

    def check_shape(self, shape: tuple[int, int], where: str = "weight") -> None:
        """Refuse a shape that blocks do not tile."""
        if self.padded_shape(shape) != tuple(shape):
            raise PatternError(
                f"{where} {list(shape)}: {self} needs rows divisible by {self.rows} and columns"
                f" divisible by {self.columns}. Options: pad to {list(self.padded_shape(shape))},"
                " a block whose sizes divide the shape, or add the layer to ignore."
            )

    def padded_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """`shape` rounded up to whole blocks."""
        return (
            -(-shape[0] // self.rows) * self.rows,
            -(-shape[1] // self.columns) * self.columns,
        )

    def legal_density(self, shape: tuple[int, int], density: float) -> float:
        """The nearest density with a whole number of kept blocks."""
        check_density(density)
        down, across = self.grid(self.padded_shape(shape))
        num_blocks = down * across
        return kept_count(density, num_blocks) / num_blocks if num_blocks else density

    def project(self, scores_RK: torch.Tensor, density: float | None = None) -> torch.Tensor:
        """Keep the round(density * blocks) blocks with the highest sums of scores."""
        wanted = self.resolve_density(density)
        check_scores(scores_RK)
        shape = (scores_RK.shape[0], scores_RK.shape[1])
        self.check_shape(shape, "scores")
        sums_PQ = self._tiled(summable(scores_RK)).sum(dim=(1, 3))
        num_kept = kept_count(wanted, sums_PQ.numel())
        kept_PQ = keep_largest(sums_PQ.flatten(), num_kept).view(sums_PQ.shape)
        return kept_PQ.repeat_interleave(self.rows, 0).repeat_interleave(self.columns, 1)

    def validate(self, mask_RK: torch.Tensor, where: str = "mask") -> None:
        """Refuse a block that is kept in part."""
        check_mask(mask_RK, where)
        self.check_shape((mask_RK.shape[0], mask_RK.shape[1]), where)
        tiled = self._tiled(mask_RK)
        counts_PQ = tiled.sum(dim=(1, 3))
        wrong = ((counts_PQ != 0) & (counts_PQ != self.rows * self.columns)).nonzero()
        if len(wrong):
            down, across = wrong[0].tolist()
            raise PatternError(
                f"{where} {list(mask_RK.shape)}: {self} keeps or drops whole blocks, but the block"
                f" at row {down * self.rows}, column {across * self.columns} keeps"
                f" {int(counts_PQ[down, across])} of {self.rows * self.columns}"
                f" ({len(wrong)} blocks are wrong). Project the scores again or name another"
                " pattern."
            )

    def kept_blocks(self, mask_RK: torch.Tensor) -> torch.Tensor:
        """Bool [P, Q] of a legal mask: which blocks are kept."""
        return mask_RK[:: self.rows, :: self.columns]

    def _tiled(self, matrix_RK: torch.Tensor) -> torch.Tensor:
        down, across = self.grid((matrix_RK.shape[0], matrix_RK.shape[1]))
        return matrix_RK.reshape(down, self.rows, across, self.columns)

    def __str__(self) -> str:
        return f"block:{self.rows}x{self.columns}"
