# SPDX-License-Identifier: Apache-2.0
"""nmg:n:m:g (STen, arXiv 2304.07613): n:m along the outputs, its patterns used equally often.

Each tile of m rows by C*g columns uses each of the C = C(m, n) ways to keep n of m rows in exactly
g columns, so that a kernel walks them in a fixed (Gray) order without branches.

Which column of a tile gets which row pattern is a transportation problem per tile, solved for all
tiles at once: greedy, then pairwise swaps until none improves.
Legend: R rows, K columns, T tiles, W = C*g columns of a tile, C row patterns, m rows of a tile.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import ClassVar

import torch
from torch.nn.functional import one_hot

from gossamer.patterns.base import BuiltinPattern
from gossamer.patterns.selection import summable

# Tiles are searched in slices of about this many (column, pattern) pairs, to bound the memory.
SLICE_PAIRS = 1 << 22
# Scores arrive scaled to about 1: smaller gains are rounding, and chasing them might never end.
MIN_GAIN = 1e-9


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
        return matrix_RK.reshape(down, self.group, across, self.tile_columns).permute(2, 0, 3, 1)

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


@lru_cache(maxsize=256)
def gray_order(num_items: int, num_chosen: int) -> tuple[tuple[int, ...], ...]:
    """All increasing tuples of `num_chosen` out of range(num_items), each one entry from the last.

    Neighbours differ in one entry, so that a kernel swaps one accumulator.

    The homogeneous scheme of Eades and McKay (1984; Knuth 7.2.1.3): with s = items - chosen,
    K(s, t) = K(s-1, t) without the top item, the reverse of K(s-1, t-1) with the top item and
    without the next, K(s, t-2) with both. Exactly one tuple entry changes at a time, not only one
    member of the set.
    """
    if num_chosen == 0:
        return ((),)
    if num_chosen == num_items:
        return (tuple(range(num_items)),)
    if num_chosen == 1:
        return tuple((item,) for item in range(num_items))
    top = num_items - 1
    order = list(gray_order(num_items - 1, num_chosen))
    order += [(*rest, top) for rest in reversed(gray_order(num_items - 2, num_chosen - 1))]
    order += [(*rest, top - 1, top) for rest in gray_order(num_items - 2, num_chosen - 2)]
    return tuple(order)


def assign_columns(
    scores_TWm: torch.Tensor, members_Cm: torch.Tensor, num_repeats: int
) -> torch.Tensor:
    """int64 [T, W]: row pattern per column, each used `num_repeats` times, for a high score."""
    step = max(1, SLICE_PAIRS // (scores_TWm.shape[1] * len(members_Cm)))
    found = []
    for part_TWm in torch.split(scores_TWm, step):
        gains_TWC = part_TWm @ members_Cm.T.to(scores_TWm.dtype)
        found.append(_improve(gains_TWC, _greedy(gains_TWC, num_repeats)))
    return torch.cat(found)


def _greedy(gains_TWC: torch.Tensor, num_repeats: int) -> torch.Tensor:
    """Take (column, pattern) pairs from the best down while the column is free and the pattern too.

    The sort is stable, so equal gains go to the lower column, then to the earlier pattern.
    """
    num_tiles, width, num_patterns = gains_TWC.shape
    order = gains_TWC.flatten(1).sort(dim=1, descending=True, stable=True).indices.T.contiguous()
    tiles_T = torch.arange(num_tiles, device=gains_TWC.device)
    ids_TW = torch.full((num_tiles, width), -1, device=gains_TWC.device)
    room_TC = torch.full((num_tiles, num_patterns), num_repeats, device=gains_TWC.device)
    for column_T, pattern_T in zip(order // num_patterns, order % num_patterns, strict=True):
        before_T = ids_TW[tiles_T, column_T]
        take_T = (before_T < 0) & (room_TC[tiles_T, pattern_T] > 0)
        ids_TW[tiles_T, column_T] = torch.where(take_T, pattern_T, before_T)
        room_TC[tiles_T, pattern_T] -= take_T.long()
    return ids_TW


def _improve(gains_TWC: torch.Tensor, ids_TW: torch.Tensor) -> torch.Tensor:
    """Swap the patterns of two columns, the best pair of each tile at a time, while it gains."""
    num_tiles, width, num_patterns = gains_TWC.shape
    num_repeats = width // num_patterns
    # Columns sorted by pattern: slot p*g + i holds the i-th column of pattern p.
    columns_TW = ids_TW.sort(dim=1, stable=True).indices
    active = torch.arange(num_tiles, device=gains_TWC.device)
    own = torch.arange(num_patterns, device=gains_TWC.device)
    for _ in range(width * num_patterns):
        columns = columns_TW[active]
        held = gains_TWC[active].gather(1, columns.unsqueeze(-1).expand(-1, -1, num_patterns))
        held_TCgC = held.view(-1, num_patterns, num_repeats, num_patterns)
        # What the tile gains when a column of pattern p takes pattern q instead; best column per p.
        moves = held_TCgC - held_TCgC[:, own, :, own].permute(1, 0, 2).unsqueeze(-1)
        best_TCC, mover_TCC = moves.max(dim=2)
        gain_T, pair_T = (best_TCC + best_TCC.transpose(1, 2)).flatten(1).max(dim=1)
        better = gain_T > MIN_GAIN
        if not better.any():
            break
        active, pair_T = active[better], pair_T[better]
        p, q = pair_T // num_patterns, pair_T % num_patterns
        mover = mover_TCC[better]
        rows = torch.arange(len(active), device=gains_TWC.device)
        slot_p = p * num_repeats + mover[rows, p, q]
        slot_q = q * num_repeats + mover[rows, q, p]
        column_p, column_q = columns_TW[active, slot_p], columns_TW[active, slot_q]
        columns_TW[active, slot_p], columns_TW[active, slot_q] = column_q, column_p
    owners = own.repeat_interleave(num_repeats).expand_as(columns_TW)
    return torch.empty_like(columns_TW).scatter_(1, columns_TW, owners)
