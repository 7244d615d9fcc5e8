# SPDX-License-Identifier: Apache-2.0
"""Scales of tables in few bits, the same on all ranks, as one process would have found them.

A table follows the largest number that its lookups touched. Ranks look up rows of different
samples, so each has seen another one: the largest of all is everybody's from the next step on. If
more than 1 % of what all ranks looked up was clipped, the next step is exact, on all ranks: they
have the same rows.

Legend: T tables, W ranks.
"""

from collections.abc import Sequence
from typing import Optional

import torch
import torch.distributed as dist
from torch import nn

from gossamer.nn.layers.tables import TableLayer, table_of
from gossamer.nn.layers.tables.following import MOST_CLIPPED, Following

__all__ = ["SharedScales"]


class SharedScales:
    """Makes what tables have noted in a lookup the same on all ranks of a group.

    Args:
        tables: layers with a scale that follows lookups, the same on all ranks now.
        group: the ranks; None for all.
    """

    def __init__(
        self, tables: Sequence[TableLayer], group: dist.ProcessGroup | None = None
    ) -> None:
        self._tables, self._group = tables, group
        self._num_ranks = dist.get_world_size(group)
        self._before = self._noted()[2:]

    @staticmethod
    def of(model: nn.Module, group: dist.ProcessGroup | None = None) -> Optional["SharedScales"]:
        """For the tables of `model` that follow a scale; None if there are none."""
        tables = (table_of(module) for module in model.modules())
        held = [table for table in tables if table is not None and table.following is not None]
        return SharedScales(held, group) if held else None

    def _following(self) -> list[Following]:
        return [found for found in (table.following for table in self._tables) if found is not None]

    def _noted(self) -> torch.Tensor:
        """Float64 [4, T]: largest magnitudes, steps to go, numbers clipped, looked up."""
        rows = [(*one.counts.tolist(), one.looked_up) for one in self._following()]
        tops = torch.stack([one.top for one in self._following()]).double()
        return torch.stack([tops, *torch.tensor(rows, dtype=torch.float64).unbind(1)])

    @torch.no_grad()
    def agree(self) -> None:
        """After a lookup, on all ranks together."""
        noted = self._noted()
        noted[2:] -= self._before
        all_W = noted.new_empty(self._num_ranks, *noted.shape)
        dist.all_gather(list(all_W), noted, group=self._group)
        tops_T, clipped_T, numbers_T = all_W[:, 0].amax(0), *all_W[:, 2:].sum(0).unbind()
        # A rank for which it was not much has the steps that are left; if there is none, all agree.
        steps_T = torch.where(clipped_T > MOST_CLIPPED * numbers_T, 0, all_W[:, 1].amax(0))
        counts_T2 = torch.stack([steps_T, self._before[0] + clipped_T], dim=1)
        for one, top, counts in zip(self._following(), tops_T, counts_T2, strict=True):
            one.top.copy_(top)
            one.counts.copy_(counts)
        self._before = self._noted()[2:]
