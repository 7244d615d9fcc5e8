# SPDX-License-Identifier: Apache-2.0
"""A model whose mixtures are whole becomes one that holds this rank's experts of them."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layer_kinds import form_of, kind_name
from gossamer.nn.layers.experts import Experts, ExpertSizes, GroupedLinear
from gossamer.nn.moe import has_experts, moe_layers
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
    for name, layer in _expert_layers(model):
        if layer.num_experts % sizes.expert:
            raise InputError(
                f"mesh.expert: {name} has {layer.num_experts} experts, which {sizes.expert} ranks"
                " cannot share equally. Use a number of ranks that divides them."
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
    for module in list(model.modules()):
        layers = {n: m for n, m in module.named_children() if kind_name(m) == "experts"}
        for name, layer in layers.items():
            module._modules[name] = _part(layer, rank, ranks, found)
        if layers:
            holder: Any = module
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


def _expert_layers(model: nn.Module) -> list[tuple[str, Any]]:
    return [(name, m) for name, m in model.named_modules() if kind_name(m) == "experts"]


def _part(layer: Any, rank: int, ranks: int, found: ExpertShards) -> nn.Module:
    """The experts of one rank of a layer; its Parameters are noted in `found`."""
    if form_of(layer) not in ("dense", "compact"):
        raise InputError(
            f"mesh.expert: a layer of experts is {form_of(layer)}; ranks share dense and compact"
            " ones. Set compaction to auto, so that masked layers become compact."
        )
    each = layer.num_experts // ranks
    rows = each * layer.out_features
    first = rank * rows

    def cut(name: str, start: int, stop: int, width: int) -> nn.Parameter:
        whole: nn.Parameter = layer._parameters[name]
        own = nn.Parameter(whole.detach()[start:stop].clone(), requires_grad=whole.requires_grad)
        found[own] = whole, slice(start * width, stop * width)
        return own

    bias = None if layer.bias is None else cut("bias", first, first + rows, 1)
    if form_of(layer) == "dense":
        part = GroupedLinear(
            each, layer.in_features, layer.out_features, bias is not None, device="meta"
        )
        part.weight = cut("weight", first, first + rows, layer.in_features)
        part.bias = bias
        return part.train(layer.training)
    kept = layer.kept_of_experts()
    start = sum(kept[: rank * each])
    values = cut("values", start, start + sum(kept[rank * each : (rank + 1) * each]), 1)
    sizes, mask_bits = ExpertSizes(each, layer.in_features), layer.mask_bits[first : first + rows]
    packed = Experts(values, mask_bits, sizes, bias, pattern=layer.pattern, mode=layer.mode)
    return packed.train(layer.training)
