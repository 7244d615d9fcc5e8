# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows are on several ranks: ids go to their rows, pooled rows come back.

Every rank asks for its own samples. The ranks that own rows pool what they have of each bag, with
torch's own embedding_bag, and send the sums back; a bag whose rows are on several ranks is added
up by the asker. Backward goes the same way: gradients of pooled rows travel to the owners, whose
tables get sparse gradients, and only owners take optimizer steps. So a table exists once.

All ranks look up together, as often as each other, whatever they ask for.

Legend: W ranks, T tables, B bags, D width.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import embedding_bag

from gossamer.errors import DistributedError, InputError

Group = dist.ProcessGroup | None


class Lookup(NamedTuple):
    """What is asked of one table: ids, bag after bag.

    Attributes:
        ids: of rows.
        lengths: ids of each bag [B].
        weights: of the ids, or None.
    """

    ids: torch.Tensor
    lengths: torch.Tensor
    weights: torch.Tensor | None

    @staticmethod
    def of(
        ids: torch.Tensor,
        offsets: torch.Tensor | None,
        weights: torch.Tensor | None,
        padding: int | None,
        has_end: bool,
    ) -> "Lookup":
        """From the arguments of `nn.EmbeddingBag`; ids that pad are left out."""
        if ids.ndim == 2:
            lengths = torch.full((len(ids),), ids.shape[1])
        elif offsets is None:
            raise InputError("tables: a vector of ids needs offsets, which say where bags begin.")
        else:
            ends = offsets.new_tensor([] if has_end else [len(ids)])
            lengths = torch.cat([offsets, ends]).diff()
        ids, weights = ids.reshape(-1).long(), None if weights is None else weights.reshape(-1)
        found = Lookup(ids, lengths, weights)
        return found if padding is None else found.chosen(ids != padding)

    def chosen(self, wanted: torch.Tensor) -> "Lookup":
        """Some of the ids; bags that lose all of theirs are empty."""
        bags = torch.repeat_interleave(torch.arange(len(self.lengths)), self.lengths)[wanted]
        weights = None if self.weights is None else self.weights[wanted]
        return Lookup(self.ids[wanted], torch.bincount(bags, minlength=len(self.lengths)), weights)


class ShardedBag(nn.Module):
    """An `nn.EmbeddingBag` of which this rank holds some rows; sums or means.

    Args:
        rows: of this rank [rows, D]; possibly none.
        bounds: first rows of all ranks' parts, and the end.
        mode: "sum" or "mean".
        padding: an id that counts for nothing.
        has_end: whether offsets end with the number of ids.
        group: the ranks; nobody else may talk in it meanwhile.
    """

    def __init__(
        self,
        rows: torch.Tensor,
        bounds: Sequence[int],
        *,
        mode: str = "sum",
        padding: int | None = None,
        has_end: bool = False,
        group: Group = None,
    ) -> None:
        super().__init__()
        if mode not in ("sum", "mean"):
            raise InputError(f"tables: a table on several ranks pools by sum or mean, got {mode}.")
        self.weight = nn.Parameter(rows)
        self.bounds, self.mode = tuple(bounds), mode
        self.padding, self.has_end, self.group = padding, has_end, group

    def extra_repr(self) -> str:
        """Rows of all ranks and of this one."""
        return f"{self.bounds[-1]}, {self.weight.shape[1]}, rows_here={len(self.weight)}"

    def asked(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
    ) -> Lookup:
        """The question that these arguments of a forward are; ids are checked."""
        if weights is not None and (self.mode != "sum" or weights.requires_grad):
            raise InputError(
                "tables: weights of ids go with sums, and get no gradient on several ranks."
            )
        bags = Lookup.of(ids, offsets, weights, self.padding, self.has_end)
        if len(bags.ids) and not 0 <= int(bags.ids.min()) <= int(bags.ids.max()) < self.bounds[-1]:
            raise InputError(
                f"tables: ids from {int(bags.ids.min())} to {int(bags.ids.max())} asked of a table"
                f" of {self.bounds[-1]} rows."
            )
        return bags

    def forward(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Pooled rows [B, D]; all ranks call it together."""
        return look_up([self], [self.asked(ids, offsets, per_sample_weights)])[0]


def look_up(tables: Sequence[ShardedBag], asked: Sequence[Lookup]) -> list[torch.Tensor]:
    """Pooled rows [B, D] of several tables by one exchange; all ranks call it together.

    Models that call their tables one by one get an exchange for each; this is one for all.
    """
    group, world = tables[0].group, len(tables[0].bounds) - 1
    questions = [_by_owner(table, bags) for table, bags in zip(tables, asked, strict=True)]
    texts = [
        torch.cat([_text(of_table[owner][1]) for of_table in questions]) for owner in range(world)
    ]
    heads_WT = torch.tensor(
        [[_head(of_table[owner][1]) for of_table in questions] for owner in range(world)],
        dtype=torch.int32,
    )
    came_WT = torch.empty_like(heads_WT)
    dist.all_to_all_single(came_WT, heads_WT, group=group)
    in_sizes = [_text_size(heads) for heads in came_WT.tolist()]
    came = torch.empty(sum(in_sizes), dtype=torch.int32)
    sizes = [len(text) for text in texts]
    dist.all_to_all_single(came, torch.cat(texts), in_sizes, sizes, group=group)
    parts = zip(torch.split(came, in_sizes), came_WT.tolist(), strict=True)
    to_answer = [_read(text, heads, tables, rank) for rank, (text, heads) in enumerate(parts)]
    answers = [
        _pooled(table, [of_rank[index] for of_rank in to_answer])
        for index, table in enumerate(tables)
    ]
    # Rank after rank, and table after table for each of them.
    given = [torch.cat([of_table[rank].flatten() for of_table in answers]) for rank in range(world)]
    taken = [
        [
            len(of_table[owner][0]) * table.weight.shape[1]
            for table, of_table in zip(tables, questions, strict=True)
        ]
        for owner in range(world)
    ]
    flat = _Carry.apply(  # type: ignore[no-untyped-call]
        torch.cat(given),
        torch.zeros((), requires_grad=torch.is_grad_enabled()),
        [len(one) for one in given],
        [sum(one) for one in taken],
        group,
    )
    rows = torch.split(flat, [size for of_owner in taken for size in of_owner])
    results = []
    for index, (table, bags) in enumerate(zip(tables, asked, strict=True)):
        width = table.weight.shape[1]
        mine = torch.cat([part.view(-1, width) for part in rows[index :: len(tables)]])
        places = torch.cat([places for places, _ in questions[index]])
        pooled = mine.new_zeros(len(bags.lengths), width).index_add(0, places, mine)
        if table.mode == "mean":
            pooled = pooled / bags.lengths.clamp(min=1)[:, None]
        results.append(pooled)
    return results


def _by_owner(table: ShardedBag, bags: Lookup) -> list[tuple[torch.Tensor, Lookup]]:
    """For every rank: which bags have rows there, and what is asked of it, in its own ids."""
    owners = torch.searchsorted(torch.tensor(table.bounds[1:]), bags.ids, right=True)
    found = []
    for owner, start in enumerate(table.bounds[:-1]):
        own = bags.chosen(owners == owner)
        places = own.lengths.nonzero().view(-1)
        found.append((places, Lookup(own.ids - start, own.lengths[places], own.weights)))
    return found


def _head(bags: Lookup) -> tuple[int, int, int]:
    return len(bags.ids), len(bags.lengths), int(bags.weights is not None)


def _text(bags: Lookup) -> torch.Tensor:
    """Ids, lengths and weights as int32."""
    parts = [bags.ids.to(torch.int32), bags.lengths.to(torch.int32)]
    if bags.weights is not None:
        parts.append(bags.weights.float().contiguous().view(torch.int32))
    return torch.cat(parts)


def _text_size(heads: Sequence[Sequence[int]]) -> int:
    return sum(ids * (1 + weighted) + bags for ids, bags, weighted in heads)


def _read(
    text: torch.Tensor,
    heads: Sequence[Sequence[int]],
    tables: Sequence[ShardedBag],
    sender: int,
) -> list[Lookup]:
    """What a rank asks of each table here; DistributedError if it cannot be."""
    found, at = [], 0
    for table, (num_ids, num_bags, weighted) in zip(tables, heads, strict=True):
        sizes = [num_ids, num_bags, num_ids * weighted]
        ids, lengths, weights = torch.split(text[at : at + sum(sizes)], sizes)
        at += sum(sizes)
        in_range = not num_ids or 0 <= int(ids.min()) <= int(ids.max()) < len(table.weight)
        if not in_range or int(lengths.sum()) != num_ids or (num_bags and int(lengths.min()) < 1):
            raise DistributedError(
                f"tables: rank {sender} asks for {num_ids} ids in {num_bags} bags that do not fit"
                f" the {len(table.weight)} rows here. All ranks must run the same version."
            )
        numbers = weights.contiguous().view(torch.float32).to(table.weight.dtype)
        found.append(Lookup(ids.long(), lengths.long(), numbers if weighted else None))
    return found


def _pooled(table: ShardedBag, asked: Sequence[Lookup]) -> tuple[torch.Tensor, ...]:
    """For every asking rank the sums of its bags' rows here."""
    ids, lengths = (torch.cat([getattr(bags, key) for bags in asked]) for key in ("ids", "lengths"))
    counts = [len(bags.lengths) for bags in asked]
    if not len(ids):
        return torch.split(table.weight.new_zeros(0, table.weight.shape[1]).detach(), counts)
    weights = None
    if any(bags.weights is not None for bags in asked):
        ones = table.weight.new_ones
        weights = torch.cat([ones(len(b.ids)) if b.weights is None else b.weights for b in asked])
    sums = embedding_bag(
        ids,
        table.weight,
        lengths.cumsum(0) - lengths,
        mode="sum",
        sparse=True,
        per_sample_weights=weights,
    )
    return torch.split(sums, counts)


class _Carry(torch.autograd.Function):
    """Numbers to other ranks, their gradients back; a mean over ranks, as losses are means.

    `anchor` wants a gradient on every rank, so that all of them take part in the way back, also
    one that was asked for nothing.
    """

    @staticmethod
    def forward(
        ctx: Any,
        numbers: torch.Tensor,
        anchor: torch.Tensor,
        out_sizes: list[int],
        in_sizes: list[int],
        group: Group,
    ) -> torch.Tensor:
        ctx.sizes, ctx.group = (out_sizes, in_sizes), group
        came = numbers.new_empty(sum(in_sizes))
        dist.all_to_all_single(came, numbers.contiguous(), in_sizes, out_sizes, group=group)
        return came

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        out_sizes, in_sizes = ctx.sizes
        came = gradients[0].new_empty(sum(out_sizes))
        sent = gradients[0].contiguous()
        dist.all_to_all_single(came, sent, out_sizes, in_sizes, group=ctx.group)
        return came.div_(len(out_sizes)), None, None, None, None
