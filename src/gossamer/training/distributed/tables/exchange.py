# SPDX-License-Identifier: Apache-2.0
"""Gradients of tables, averaged over ranks by packets of touched rows.

    exchange = TableExchange(sparse_tables(model), TableSettings(wire="int8"))
    loss.backward()
    exchange.reduce(step)      # every table's gradient is the mean now, the same on all ranks

A small message comes first: how many rows each rank has of each table, and its largest number. So
all ranks know the sizes of what follows, and one scale per table, the maximum over ranks: a mean of
scales would clip the ranks with large gradients. Integers are added as integers, which is exact and
does not depend on an order; only then the scale is applied, once. (gloo's own all-reduce of int8
wraps around without a word.)

A step in which some number is not finite travels as it is, so that all ranks see NaN or Inf, as
they do with dense gradients.

Legend: T tables, W ranks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from gossamer.data import generator_of
from gossamer.errors import DistributedError, InputError
from gossamer.training.distributed.processes import check_alike
from gossamer.training.distributed.table_traffic import TableTraffic, TableWire
from gossamer.training.distributed.tables.codes import add_codes, scales_of
from gossamer.training.distributed.tables.packet import RowPacket
from gossamer.training.distributed.tables.rows import KeyedRows, add_up, group_tables
from gossamer.training.distributed.tables.sharing import estimated_union, gather_bytes, sketch_of

Route = Literal["auto", "gather", "owner"]
Rounding = Literal["nearest", "stochastic"]


@dataclass(frozen=True)
class TableSettings:
    """How rows of tables travel.

    Attributes:
        wire: numbers as they are, or integers of 8 or 4 bits with one scale per table.
        rounding: of integers: to the nearest, or up and down at random with the right mean.
        route: "gather": every rank sends its rows to all others. "owner": every row has a rank that
            adds it up and sends the sum to all, rounded once more. "auto": what sends less.
        seed: of stochastic rounding; a step's draws follow from it, the rank and the step.
    """

    wire: TableWire = "full"
    rounding: Rounding = "nearest"
    route: Route = "auto"
    seed: int = 0


@dataclass(frozen=True)
class StepRecord:
    """What one exchange did, on this rank.

    Attributes:
        rows: that this rank had touched.
        union: that any rank had touched.
        sent_bytes: payload of all messages, small ones included.
        route: that was taken.
    """

    rows: int
    union: int
    sent_bytes: int
    route: Literal["gather", "owner"]


class TableExchange:
    """Averages gradients of tables over the ranks of a group.

    All ranks make it together, with the same tables, and call `reduce` together. A rank without any
    row takes part.

    Args:
        tables: Parameters with sparse gradients, by name.
        settings: how rows travel.
        group: the ranks; None for all.
    """

    def __init__(
        self,
        tables: Mapping[str, nn.Parameter],
        settings: TableSettings | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if not tables:
            raise InputError(
                "tables: there is none. Layers with sparse=True give gradients of touched rows."
            )
        self.settings, self._group = settings or TableSettings(), group
        self._packet = RowPacket(group_tables(tables))
        self.tables = list(tables.values())
        self._rank, self._num_ranks = dist.get_rank(group), dist.get_world_size(group)
        shapes = {f"table {n}": [str(t.dtype), *t.shape] for n, t in tables.items()}
        check_alike({**shapes, "way tables travel": repr(self.settings)}, group)
        self.first: StepRecord | None = None
        self.last: StepRecord | None = None
        self._sent = 0

    @torch.no_grad()
    def reduce(self, number: int) -> None:
        """Replace the gradients by their mean over all ranks.

        Args:
            number: of the step, the same on all ranks; decides draws of stochastic rounding.
        """
        self._sent, packet = 0, self._packet
        rows = [group.collect(self.tables) for group in packet.groups]
        counts_T = packet.counts(rows)
        peaks_T = packet.peaks(rows, counts_T)
        asks_sketch = self.settings.route == "auto" and self._num_ranks > 2
        sketch = sketch_of(rows) if asks_sketch else torch.empty(0, dtype=torch.int32)
        counts_WT, peaks_WT, sketches = self._heads(number, counts_T, peaks_T, sketch)
        # NaN anywhere makes NaN here; scales of integers come from finite numbers only.
        peak_T = peaks_WT.amax(0)
        wire = self.settings.wire if bool(peak_T.isfinite().all()) else "full"
        scales_T = torch.ones_like(peak_T) if wire == "full" else scales_of(peak_T, wire)
        route: Literal["gather", "owner"] = "gather"
        if self.settings.route == "owner" and self._num_ranks > 1:
            route = "owner"
        elif asks_sketch:
            route = self._forecast(counts_WT, sketches, wire).route
        if route == "owner":
            result = self._by_owners(number, rows, scales_T, wire)
        else:
            mine = packet.pack(rows, counts_T, scales_T, wire, self._generator(wire, number, 0))
            parts = self._gathered(mine, counts_WT, wire, coded=True)
            result = packet.scaled(self._sums(parts, wire), scales_T / self._num_ranks)
        for group, part in zip(packet.groups, result, strict=True):
            group.hand_out(part, self.tables)
        union = sum(len(part.keys) for part in result)
        self.last = StepRecord(int(counts_T.sum()), union, self._sent, route)
        self.first = self.first or self.last

    def _generator(self, wire: TableWire, number: int, phase: int) -> torch.Generator | None:
        if wire == "full" or self.settings.rounding == "nearest":
            return None
        return generator_of(self.settings.seed, number, self._rank, phase)

    def _heads(
        self, number: int, counts_T: torch.Tensor, peaks_T: torch.Tensor, more: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Counts and largest numbers of all ranks [W, T], and what else they said."""
        step = torch.tensor([number % 2**31], dtype=torch.int32)
        peaks = peaks_T.contiguous().view(torch.int32)
        mine = torch.cat([counts_T.to(torch.int32), peaks, step, more])
        all_W = mine.new_empty(self._num_ranks, len(mine))
        dist.all_gather(list(all_W), mine, group=self._group)
        self._sent += (self._num_ranks - 1) * mine.nbytes
        count = len(counts_T)
        if not bool((all_W[:, 2 * count] == step).all()):
            raise DistributedError(
                f"tables: ranks are at different steps: {all_W[:, 2 * count].tolist()}. Start all"
                " of them from the same checkpoint."
            )
        counts_WT = all_W[:, :count].long()
        self._packet.check_counts(counts_WT)
        peaks_WT = all_W[:, count : 2 * count].contiguous().view(torch.float32)
        return counts_WT, peaks_WT, all_W[:, 2 * count + 1 :]

    def _gathered(
        self, mine: torch.Tensor, counts_WT: torch.Tensor, wire: TableWire, *, coded: bool
    ) -> list[list[KeyedRows]]:
        """Rows of all ranks, this one's included, as they came from the wire."""
        packet = self._packet
        sizes = [packet.num_bytes(counts_T, wire) for counts_T in counts_WT]
        found = gather_bytes(mine, sizes, self._group)
        self._sent += (self._num_ranks - 1) * len(mine)
        return [
            packet.unpack(raw, counts_T, wire, rank, coded=coded)
            for rank, (raw, counts_T) in enumerate(zip(found, counts_WT, strict=True))
        ]

    def _sums(
        self, parts: Sequence[Sequence[KeyedRows]], wire: TableWire = "full"
    ) -> list[KeyedRows]:
        """Of all ranks' rows, group by group, in the order of ranks; with a `wire`, of codes."""
        if wire == "full":
            return [add_up(of_group) for of_group in zip(*parts, strict=True)]
        groups, sums = self._packet.groups, []
        for group, of_group in zip(groups, zip(*parts, strict=True), strict=True):
            add = partial(add_codes, width=group.width, wire=wire)
            found = add_up(of_group, add)
            sums.append(KeyedRows(found.keys, found.values.to(group.dtype)))
        return sums

    def _by_owners(
        self, number: int, rows: list[KeyedRows], scales_T: torch.Tensor, wire: TableWire
    ) -> list[KeyedRows]:
        """Rows go to the rank of their key; means of its rows go from there to all."""
        packet, world = self._packet, self._num_ranks
        generator = self._generator(wire, number, 0)
        sent, counts = [], []
        for owner in range(world):
            own = [_owned(part, owner, world) for part in rows]
            counts.append(packet.counts(own))
            sent.append(packet.pack(own, counts[-1], scales_T, wire, generator))
        counts_WT = torch.stack(counts).to(torch.int32)
        came_WT = torch.empty_like(counts_WT)
        dist.all_to_all_single(came_WT, counts_WT, group=self._group)
        came_WT = came_WT.long()
        packet.check_counts(came_WT)
        sizes = [packet.num_bytes(counts_T, wire) for counts_T in came_WT]
        came = torch.empty(sum(sizes), dtype=torch.uint8)
        out_sizes = [len(one) for one in sent]
        dist.all_to_all_single(came, torch.cat(sent), sizes, out_sizes, group=self._group)
        self._sent += sum(out_sizes) - out_sizes[self._rank]
        self._sent += counts_WT.nbytes * (world - 1) // world
        parts = [
            # A copy each: ids must begin at a multiple of their size.
            packet.unpack(raw.clone(), came_WT[rank], wire, rank, coded=True)
            for rank, raw in enumerate(torch.split(came, sizes))
        ]
        means = packet.scaled(self._sums(parts, wire), scales_T / world)
        counts_T = packet.counts(means)
        none = torch.empty(0, dtype=torch.int32)
        counts_WT, peaks_WT, _ = self._heads(number, counts_T, packet.peaks(means, counts_T), none)
        # Only an owner rounds its rows, so its own scale serves.
        scales_WT = peaks_WT if wire == "full" else scales_of(peaks_WT, wire)
        generator = self._generator(wire, number, 1)
        mine = packet.pack(means, counts_T, scales_WT[self._rank], wire, generator)
        parts = self._gathered(mine, counts_WT, wire, coded=False)
        if wire != "full":
            parts = [packet.scaled(p, s) for p, s in zip(parts, scales_WT, strict=True)]
        return self._sums(parts)

    def _forecast(
        self, counts_WT: torch.Tensor, sketches: torch.Tensor, wire: TableWire
    ) -> TableTraffic:
        """Bytes of both routes, from what all ranks know."""
        world = self._num_ranks
        sizes = [self._packet.num_bytes(counts_T, wire) for counts_T in counts_WT]
        mean = sum(sizes) / world
        rows = float(counts_WT.sum()) / world
        union = min(estimated_union(sketches), rows * world)
        per_row = mean / rows if rows else 0.0
        owner = (world - 1) / world * (mean + union * per_row)
        return TableTraffic((world - 1) * mean, owner if math.isfinite(owner) else math.inf)


def _owned(rows: KeyedRows, owner: int, world: int) -> KeyedRows:
    """Rows whose key is `owner` modulo `world`: neighbours differ, so that popular ones spread."""
    mine_N = rows.keys % world == owner
    return KeyedRows(rows.keys[mine_N], rows.values[mine_N])
