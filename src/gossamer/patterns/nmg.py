# SPDX-License-Identifier: Apache-2.0
"""nmg:n:m:g (STen, arXiv 2304.07613): n:m along the outputs, its patterns used equally often.

Each tile of m rows by C*g columns uses each of the C = C(m, n) ways to keep n of m rows in exactly
g columns, so that a kernel walks them in a fixed (Gray) order without branches.
Legend: R rows, K columns, T tiles, W = C*g columns of a tile, C row patterns, m rows of a tile.
"""

from dataclasses import dataclass
from math import comb
from typing import ClassVar

import torch
from torch.nn.functional import one_hot

from gossamer.patterns.base import BuiltinPattern
from gossamer.patterns.nmg_search import assign_columns, gray_order
from gossamer.patterns.select import summable


@dataclass(frozen=True)
class NMG(BuiltinPattern):
    """`num_kept` of `group` outputs per input; each row pattern in `repeats` columns of a tile."""

    form: ClassVar[str] = "nmg"
    num_kept: int
    group: int
    repeats: int

    @property
    def num_row_patterns(self) -> int:
        """C(m, n)."""
        return comb(self.group, self.num_kept)

    @property
    def tile_columns(self) -> int:
        """C(m, n) * g."""
        return self.num_row_patterns * self.repeats

    @property
    def tile(self) -> tuple[int, int]:
        """M rows by C(m, n) * g columns."""
        return self.group, self.tile_columns

    def row_patterns(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """int64 [C, n]: the kept rows of each row pattern, in Gray order."""
        return torch.tensor(gray_order(self.group, self.num_kept), device=device)

    def _shape_fault(self, shape: tuple[int, ...], padded: tuple[int, int]) -> str:
        return (
            f"needs rows divisible by {self.group} and columns divisible by C({self.group},"
            f" {self.num_kept}) * {self.repeats} = {self.tile_columns}. Options: pad to"
            f" {list(padded)}, another g, or add the layer to ignore."
        )

    def _chosen(self, scores_RK: torch.Tensor, density: float) -> torch.Tensor:
        """Give every column of a tile a row pattern: greedily, then by swaps that improve."""
        if scores_RK.numel() == 0:
            return torch.zeros_like(scores_RK, dtype=torch.bool)
        scores_TWm = self.tiled(summable(scores_RK)).flatten(0, 1)
        members_Cm = one_hot(self.row_patterns(scores_RK.device), self.group).sum(dim=1).bool()
        ids_TW = assign_columns(scores_TWm, members_Cm, self.repeats)
        return self.untiled(members_Cm[ids_TW], scores_RK.shape)

    def tiled(self, matrix_RK: torch.Tensor) -> torch.Tensor:
        """[K/W, R/m, W, m] view of a fitting matrix: tiles in storage order, columns first."""
        down, across = self.grid(matrix_RK.shape)
        tiles = matrix_RK.reshape(down, self.group, across, self.tile_columns)
        return tiles.permute(2, 0, 3, 1)

    def untiled(self, tiles_TWm: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """The matrix [R, K] whose `tiled` form, tiles flattened or not, this is."""
        down, across = self.grid(shape)
        tiles = tiles_TWm.reshape(across, down, self.tile_columns, self.group)
        return tiles.permute(1, 3, 0, 2).reshape(shape)

    def row_pattern_ids(self, mask_RK: torch.Tensor) -> torch.Tensor:
        """int64 [K/W, R/m, W]: the row pattern of each column of each tile, -1 where there is none.

        A column's bits, read as a number, are looked up among those of the C row patterns.
        """
        codes_C, order_C = (1 << self.row_patterns(mask_RK.device)).sum(dim=1).sort()
        tiles = self.tiled(mask_RK)
        codes = tiles[..., 0].long().contiguous()
        for row in range(1, self.group):
            codes += tiles[..., row].long() << row
        slots = torch.searchsorted(codes_C, codes).clamp_(max=len(codes_C) - 1)
        return torch.where(codes_C[slots] == codes, order_C[slots], -1)

    def _mask_fault(self, mask_RK: torch.Tensor) -> str:
        """A column that keeps other than n of m, or a tile with unequal use of patterns."""
        ids = self.row_pattern_ids(mask_RK)
        wrong = (ids < 0).nonzero()
        if len(wrong):
            across, down, column = wrong[0].tolist()
            return (
                f"keeps exactly {self.num_kept} of {self.group} outputs, but rows"
                f" {down * self.group} to {(down + 1) * self.group - 1} of column"
                f" {across * self.tile_columns + column} do not. Project the scores again."
            )
        used = torch.zeros(*ids.shape[:2], self.num_row_patterns, dtype=ids.dtype)
        used = used.to(ids.device).scatter_add_(2, ids, torch.ones_like(ids))
        wrong = (used != self.repeats).nonzero()
        if not len(wrong):
            return ""
        across, down, which = wrong[0].tolist()
        return (
            f"uses each choice of rows in exactly {self.repeats} columns of a tile, but the tile at"
            f" row {down * self.group}, column {across * self.tile_columns} uses rows"
            f" {gray_order(self.group, self.num_kept)[which]} in"
            f" {int(used[across, down, which])}. Project the scores again."
        )
