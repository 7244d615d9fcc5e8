# SPDX-License-Identifier: Apache-2.0
"""What a rank sends of its tables: touched rows of all of them in one buffer of bytes.

First the ids of all rows, int32, table after table; then their values. How many rows of which table
there are, and their scales, travel in the small message before. What arrives is checked before it
is used: an id out of range would be written beyond a table.

Legend: T tables (in the order of their groups), N rows, D width.
"""

from collections.abc import Iterator, Sequence

import torch

from gossamer.errors import DistributedError
from gossamer.ops.table import Rows
from gossamer.training.distributed.table_traffic import ID_BYTES, TableWire
from gossamer.training.distributed.tables.codes import decode, encode, value_bytes
from gossamer.training.distributed.tables.rows import KeyedRows, TableGroup


class RowPacket:
    """The form of packets of these tables, the same on all ranks."""

    def __init__(self, groups: Sequence[TableGroup]) -> None:
        self.groups = tuple(groups)
        self.names = [name for group in groups for name in group.names]
        self.heights_T = torch.tensor([height for group in groups for height in group.heights])

    def by_group(self, all_T: torch.Tensor) -> Iterator[tuple[TableGroup, torch.Tensor]]:
        """What belongs to the tables of each group, of something that is there for all tables."""
        sizes = [len(group.names) for group in self.groups]
        yield from zip(self.groups, torch.split(all_T, sizes), strict=True)

    def counts(self, rows: Sequence[KeyedRows]) -> torch.Tensor:
        """Rows of each table [T]."""
        pairs = zip(self.groups, rows, strict=True)
        return torch.cat([group.counts(part.keys) for group, part in pairs])

    def peaks(self, rows: Sequence[KeyedRows], counts_T: torch.Tensor) -> torch.Tensor:
        """The largest number of each table [T], 0 without rows; NaN or Inf if there is one."""
        pairs = zip(self.by_group(counts_T), rows, strict=True)
        return torch.tensor(
            [
                _top(table_ND)
                for (_, counts), part in pairs
                for table_ND in torch.split(part.values, counts.tolist())
            ]
        )

    def num_bytes(self, counts_T: torch.Tensor, wire: TableWire) -> int:
        """Of a packet with so many rows of each table."""
        return sum(
            int(counts.sum()) * (ID_BYTES + value_bytes(group.width, wire, group.dtype))
            for group, counts in self.by_group(counts_T)
        )

    def pack(
        self,
        rows: Sequence[KeyedRows],
        counts_T: torch.Tensor,
        scales_T: torch.Tensor,
        wire: TableWire,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """The bytes of these rows."""
        ids, values = [], []
        pairs = zip(self.by_group(counts_T), self.by_group(scales_T), rows, strict=True)
        for (group, counts), (_, scales), part in pairs:
            before_N = torch.repeat_interleave(group.starts[:-1], counts)
            ids.append((part.keys - before_N).to(torch.int32).view(torch.uint8))
            tables = torch.split(part.values, counts.tolist())
            coded = encode(tables, scales.tolist(), wire, generator)
            values += [codes_NB.flatten() for codes_NB in coded]
        return torch.cat(ids + values)

    def unpack(
        self,
        raw: torch.Tensor,
        counts_T: torch.Tensor,
        wire: TableWire,
        sender: int,
        *,
        coded: bool = False,
    ) -> list[KeyedRows]:
        """Rows of a packet; where integers travelled, values are integers, or codes of them.

        Raises:
            DistributedError: the packet does not fit the tables; nothing was changed.
        """
        if len(raw) != self.num_bytes(counts_T, wire):
            raise DistributedError(
                f"tables: rank {sender} sent {len(raw)} bytes for {int(counts_T.sum())} rows,"
                f" expected {self.num_bytes(counts_T, wire)}. All ranks must run the same version."
            )
        found, at = [], ID_BYTES * int(counts_T.sum())
        sizes = [int(counts.sum()) for _, counts in self.by_group(counts_T)]
        ids = torch.split(raw[:at].view(torch.int32), sizes)
        for (group, counts), ids_N in zip(self.by_group(counts_T), ids, strict=True):
            size = len(ids_N) * value_bytes(group.width, wire, group.dtype)
            values = raw[at : at + size]
            values_ND = decode(values, group.width, wire, group.dtype, coded=coded)
            keys_N = self._keys(group, counts, ids_N, sender)
            found.append(KeyedRows(keys_N, values_ND))
            at += size
        return found

    def _keys(
        self, group: TableGroup, counts: torch.Tensor, ids_N: torch.Tensor, sender: int
    ) -> torch.Tensor:
        """Keys of ids that came from elsewhere: in range, ascending, each once."""
        starts = group.starts
        keys_N = ids_N + torch.repeat_interleave(starts[:-1], counts)
        ends_N = torch.repeat_interleave(starts[1:], counts)
        bad_N = (ids_N < 0) | (keys_N >= ends_N)
        bad_N[1:] |= keys_N[1:] <= keys_N[:-1]
        if bool(bad_N.any()):
            place = int(bad_N.nonzero()[0])
            table = int(torch.searchsorted(counts.cumsum(0), place, right=True))
            raise DistributedError(
                f"tables: rank {sender} sent id {int(ids_N[place])} of {group.names[table]}, which"
                f" has {group.heights[table]} rows; ids must be in range, ascending, each once."
                " All ranks must run the same version."
            )
        return keys_N

    def check_counts(self, counts_WT: torch.Tensor) -> None:
        """Refuse numbers of rows that no table has, before anything is allocated for them."""
        bad = ((counts_WT < 0) | (counts_WT > self.heights_T)).nonzero().tolist()
        if bad:
            rank, table = bad[0]
            raise DistributedError(
                f"tables: rank {rank} announced {int(counts_WT[rank, table])} rows of"
                f" {self.names[table]}, which has {int(self.heights_T[table])}."
            )

    def scaled(self, rows: Sequence[KeyedRows], scales_T: torch.Tensor) -> list[KeyedRows]:
        """Rows times the scale of their table."""
        found = []
        for (group, scales), part in zip(self.by_group(scales_T), rows, strict=True):
            scales_N = torch.repeat_interleave(scales, group.counts(part.keys))
            found.append(KeyedRows(part.keys, part.values * scales_N[:, None].to(group.dtype)))
        return found


def _top(values_ND: torch.Tensor) -> float:
    """The largest magnitude; NaN if there is one."""
    if not values_ND.numel():
        return 0.0
    if values_ND.dtype is torch.float32:
        return Rows(values_ND.contiguous(), values_ND.shape[1]).top()
    return float(values_ND.abs().amax())
