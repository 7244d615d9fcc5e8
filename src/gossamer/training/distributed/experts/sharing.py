# SPDX-License-Identifier: Apache-2.0
"""A model whose mixtures are whole becomes one that holds this rank's experts of them."""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.experts import some_experts
from gossamer.nn.moe import has_experts, moe_layers
from gossamer.nn.surgery.mixtures import mixtures_of
from gossamer.training.distributed.experts.exchange import ExpertExchange
from gossamer.training.distributed.mesh_sizes import MeshSizes

# A rank's part as a Parameter of its own -> the whole one, and its entries there, flat.
ExpertShards = dict[nn.Parameter, tuple[nn.Parameter, slice]]


def check_experts(sizes: MeshSizes, model: nn.Module) -> None:
    """Refuse what ranks cannot share; masks may still move."""
    if not has_experts(model):
        if sizes.expert > 1:
            raise InputError(
                f"mesh.expert: {sizes.expert} ranks should share experts, and the model has none."
                f" Use data: {sizes.num_ranks}."
            )
        return
    if sizes.shard * sizes.tensor * sizes.pipeline > 1:
        raise InputError(
            "mesh: a model with experts goes with data and expert only: losses of routers do not"
            " cross the stages of a pipeline, and shard and tensor do not keep what experts without"
            f" a token had. Use data: {sizes.num_ranks}."
        )
    if sizes.expert == 1:
        return
    for layer in mixtures_of(model):
        count = layer.num_experts
        if count % sizes.expert:
            raise InputError(
                f"mesh.expert: {layer.name or 'the model'} has {count} experts, which"
                f" {sizes.expert} ranks cannot share equally. Use a number of ranks that divides"
                " them."
            )
    for name, moe in moe_layers(model):
        if moe.router.choice == "experts":
            raise InputError(
                f"mesh.expert: the experts of {name or 'the model'} choose their tokens, and would"
                " have to look at those of all ranks. Use choice='tokens', or data ranks only."
            )


def share_experts(model: nn.Module, group: dist.ProcessGroup) -> ExpertShards:
    """Leave this rank's experts in every mixture of `model`, in place; all ranks alike.

    The whole Parameters are not changed. Tokens of other ranks are computed here from then on, and
    those of this rank where their experts are.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    found: ExpertShards = {}
    for layer in mixtures_of(model):
        each, holder = layer.num_experts // ranks, cast("Any", layer.experts)
        for name, child in list(holder.named_children()):
            if child is layer.up or child is layer.down:
                holder._modules[name], origins = some_experts(child, rank * each, each)
                found |= origins
        holder.exchange = ExpertExchange(group)
    return found


def count_together(model: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Let routers of mixtures look at the tokens of all ranks of the group; None: at their own."""

    def peers(counts_E: torch.Tensor) -> tuple[torch.Tensor, int]:
        counts_PE = counts_E.new_empty(dist.get_world_size(group), len(counts_E))
        dist.all_gather(list(counts_PE.unbind(0)), counts_E, group=group)
        return counts_PE, dist.get_rank(group)

    for _, layer in moe_layers(model):
        layer.router.peers = None if group is None else peers
