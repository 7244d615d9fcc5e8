# SPDX-License-Identifier: Apache-2.0
"""A model whose tables are whole becomes one that holds this rank's rows of them."""

from typing import cast

import torch.distributed as dist
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.tables.late_rows import fill_late, late_of
from gossamer.nn.surgery import replace_module
from gossamer.training.distributed.tables.shard_plan import Sharding, TableSize, plan_shards
from gossamer.training.distributed.tables.sharded import ShardedBag

# A rank's rows as a Parameter of their own -> the whole table, and their entries of it, flat.
RowShards = dict[nn.Parameter, tuple[nn.Parameter, slice]]


def shard_tables(
    model: nn.Module,
    how: Sharding,
    group: dist.ProcessGroup | None = None,
    room: int | None = None,
) -> RowShards:
    """Put `ShardedBag`s in the place of stock bags with sparse gradients; all ranks alike.

    Other tables stay as they are: layers that compute with their rows, such as quantised ones, and
    `nn.Embedding`.

    Args:
        model: its bags are replaced in place; the whole tables are not changed. Of tables that
            have no numbers yet (`late_rows`) only the rows of this rank are made.
        how: tables are cut.
        group: the ranks; used by tables alone.
        room: bytes of tables that a rank may hold.
    """
    if how == "none":
        fill_late(model)
        return {}
    bags = {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.EmbeddingBag and module.sparse and module.weight.requires_grad
    }
    for name, bag in bags.items():
        if bag.mode not in ("sum", "mean") or bag.max_norm is not None or bag.scale_grad_by_freq:
            raise InputError(
                f"{name}: a table on several ranks pools by sum or mean, without max_norm and"
                f" scale_grad_by_freq; got {bag}."
            )
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    sizes = {name: TableSize(len(bag.weight), bag.weight[:1].nbytes) for name, bag in bags.items()}
    plan = plan_shards(sizes, world, how, room)
    made: dict[nn.Parameter, nn.Parameter] = {}
    found: RowShards = {}
    for name, bag in bags.items():
        bounds, whole = plan[name], cast("nn.Parameter", bag.weight)
        start, stop = bounds[rank], bounds[rank + 1]
        late = late_of(bag)
        sharded = ShardedBag(
            whole.detach()[start:stop].clone() if late is None else late.rows(start, stop),
            bounds,
            mode=bag.mode,
            padding=bag.padding_idx,
            has_end=bag.include_last_offset,
            group=group,
        )
        # Two layers may share one table; the first one's cut is both's.
        sharded.weight = made.setdefault(whole, sharded.weight)
        width = whole.shape[1]
        found[sharded.weight] = (whole, slice(start * width, stop * width))
        sharded.train(bag.training)
        replace_module(model, bag, sharded)
    fill_late(model)
    return found
