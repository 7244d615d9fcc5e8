# SPDX-License-Identifier: Apache-2.0
"""V:N:M (VENOM, arXiv 2310.02065): 4 of M columns shared by V rows, then 2 of those 4 per row.

Legend: R rows, K columns, B = ceil(R/V) row blocks, G = K/M column groups, M columns of a group.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import torch
from torch.nn.functional import one_hot, pad

from gossamer.patterns.nm import GroupedPattern
from gossamer.patterns.selection import keep_largest, summable
from gossamer.patterns.syntax import FORMS, NUM_KEPT, NUM_SHARED

# C(8, 4) = 70 sets are tried one by one; C(16, 4) = 1820 would cost more than they gain (< 1.4 %).
MAX_GROUP_EXACT = 8
# Row blocks are searched in slices of about this many scores, to bound the working memory.
SLICE_SCORES = 1 << 22


@dataclass(frozen=True)
class VNM(GroupedPattern):
    """`block_rows` rows share 4 of every `group` columns; each row keeps 2 of the 4."""

    form: ClassVar[str] = "V:N:M"
    block_rows: int
    group: int

    def grid(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Row blocks, the last of which may be short, and column groups of a fitting shape."""
        return -(-shape[0] // self.block_rows), shape[1] // self.group

    def _nearest_dividing(self, num_columns: int) -> "VNM | None":
        groups = [
            m for m in range(NUM_SHARED, FORMS[self.form].max_group + 1) if num_columns % m == 0
        ]
        nearest = min(groups, key=lambda m: abs(m - self.group), default=None)
        return None if nearest is None else VNM(self.block_rows, nearest)

    def _chosen(self, scores_RK: torch.Tensor, density: float) -> torch.Tensor:
        """Keep high scores: exact for M <= 8, else the 4 heaviest columns and one pass of swaps."""
        if scores_RK.numel() == 0:
            return torch.zeros_like(scores_RK, dtype=torch.bool)
        scores_BVGM = self.row_blocks(summable(scores_RK))
        choose = _best_columns if self.group <= MAX_GROUP_EXACT else _good_columns
        step = max(1, SLICE_SCORES // scores_BVGM[0].numel())
        shared_BGM = torch.cat([choose(part) for part in torch.split(scores_BVGM, step)])
        # The row's own scores decide inside the set: a sum's rounding must not.
        own_BVGM = self.row_blocks(scores_RK)
        columns_BG4 = shared_BGM.nonzero()[:, 2].view(*shared_BGM.shape[:2], NUM_SHARED)
        index = columns_BG4.unsqueeze(1).expand(-1, own_BVGM.shape[1], -1, -1)
        kept_BVG4 = keep_largest(own_BVGM.gather(3, index), NUM_KEPT)
        mask_BVGM = torch.zeros_like(own_BVGM, dtype=torch.bool).scatter_(3, index, kept_BVG4)
        return mask_BVGM.flatten(0, 1).flatten(1)[: len(scores_RK)]

    def row_blocks(self, matrix_RK: torch.Tensor) -> torch.Tensor:
        """[B, V, G, M] view of a fitting matrix, a short last block filled with zero rows."""
        num_blocks, num_groups = self.grid(matrix_RK.shape)
        height = self.block_rows if num_blocks > 1 else len(matrix_RK)
        padded = pad(matrix_RK, (0, 0, 0, num_blocks * height - len(matrix_RK)))
        return padded.reshape(num_blocks, height, num_groups, self.group)

    def _mask_fault(self, mask_RK: torch.Tensor) -> str:
        """A row that keeps other than 2 of M, or a block that needs more than 4 columns."""
        fault, _ = self._miscounted(mask_RK, NUM_KEPT)
        if fault:
            return f"{fault}. Project the scores again."
        num_used_BG = self.row_blocks(mask_RK).any(dim=1).sum(dim=-1)
        wrong = (num_used_BG > NUM_SHARED).nonzero()
        if not len(wrong):
            return ""
        block, group = wrong[0].tolist()
        return (
            f"shares 4 columns among {self.block_rows} rows, but rows from"
            f" {block * self.block_rows}, columns {group * self.group} to"
            f" {(group + 1) * self.group - 1}, use {int(num_used_BG[block, group])}. Project the"
            " scores again."
        )


def _best_columns(scores_BVGM: torch.Tensor) -> torch.Tensor:
    """Bool [B, G, M]: the best of all sets of 4 columns; the first in order wins a tie."""
    sets = list(combinations(range(scores_BVGM.shape[-1]), NUM_SHARED))
    columns = scores_BVGM.unbind(dim=-1)
    best_BG = torch.stack([_top_two_sum([columns[c] for c in four]) for four in sets]).argmax(0)
    members_SM = one_hot(torch.tensor(sets, device=best_BG.device), len(columns)).sum(dim=1)
    return members_SM.bool()[best_BG]


def _top_two_sum(four_BVG: list[torch.Tensor]) -> torch.Tensor:
    """[B, G]: what V rows retain when each keeps its 2 best of 4 columns."""
    a, b, c, d = four_BVG
    high_ab, low_ab = torch.maximum(a, b), torch.minimum(a, b)
    high_cd, low_cd = torch.maximum(c, d), torch.minimum(c, d)
    second = torch.maximum(torch.minimum(high_ab, high_cd), torch.maximum(low_ab, low_cd))
    return (torch.maximum(high_ab, high_cd) + second).sum(dim=1)


def _good_columns(scores_BVGM: torch.Tensor) -> torch.Tensor:
    """Bool [B, G, M]: the 4 heaviest columns, then each swapped once for the best replacement."""
    shared_BGM = keep_largest(scores_BVGM.sum(dim=1), NUM_SHARED)
    columns_BG4 = shared_BGM.nonzero()[:, 2].view(*shared_BGM.shape[:2], NUM_SHARED)
    for slot in range(NUM_SHARED):
        others_BG3 = columns_BG4[..., [s for s in range(NUM_SHARED) if s != slot]]
        index = others_BG3.unsqueeze(1).expand(-1, scores_BVGM.shape[1], -1, -1)
        # A row's best of the 3 others stays whatever comes in; its second best competes.
        second_BVG1 = scores_BVGM.gather(3, index).median(dim=-1, keepdim=True).values
        gain_BGM = torch.maximum(scores_BVGM, second_BVG1).sum(dim=1)
        gain_BGM.scatter_(2, others_BG3, -torch.inf)
        columns_BG4[..., slot] = gain_BGM.argmax(dim=-1)
    return torch.zeros_like(shared_BGM).scatter_(2, columns_BG4, True)
