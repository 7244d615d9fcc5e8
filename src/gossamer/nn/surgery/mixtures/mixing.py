# SPDX-License-Identifier: Apache-2.0
"""Fewer experts: each one that is left is a weighted sum of old ones, its row of the router, too.

Dropping is the sum of one expert. What has one part per expert is found by its shape: experts,
routers, their biases and corrections.

Legend: E experts, N experts that are left.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.nn.layer_kinds import form_of, kind_name, sparse_layers
from gossamer.nn.surgery.mixtures.rebuilt import become

_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_TOP_K = ("num_experts_per_tok", "top_k")


@dataclass(frozen=True)
class MixtureLayer:
    """The experts of one block.

    Attributes:
        name: dotted name of the mixture: router and experts are in it.
        experts: called with tokens, what the router chose, and weights.
        up: its first layer.
        down: its last layer, whose outputs are those of single experts.
        num_experts: E.
    """

    name: str
    experts: nn.Module
    up: nn.Module
    down: nn.Module
    num_experts: int


def mixtures_of(model: nn.Module) -> list[MixtureLayer]:
    """The layers of experts of a model, in its order; those of transformers are adopted ones."""
    found = []
    for name, module in model.named_modules():
        layers = [child for child in module.children() if kind_name(child) == "experts"]
        if len(layers) == 2:
            parent = name.rpartition(".")[0]
            count = int(getattr(layers[1], "num_experts"))  # noqa: B009 (of any form)
            found.append(MixtureLayer(parent, module, layers[0], layers[1], count))
    return found


def mix_experts(model: nn.Module, mixing: Mapping[str, torch.Tensor]) -> None:
    """Make the experts of every mixture anew, in place.

    Args:
        model: dense, of transformers with adopted experts, or of the zoo.
        mixing: for each mixture by its name, [N, E]: how much of which old expert each new one is;
            N is the same for all.
    """
    layers = mixtures_of(model)
    pruned = next((n for n, m in sparse_layers(model) if form_of(m) != "dense"), None)
    if pruned is not None:
        raise TargetError(f"{pruned}: is pruned already. Take experts out first, then prune.")
    counts = {len(mix) for mix in mixing.values()}
    if not layers or {layer.name for layer in layers} != set(mixing) or len(counts) != 1:
        raise InputError(
            f"experts: the model has {len(layers)} mixtures, and {len(mixing)} are given with"
            f" {sorted(counts)} experts. All of them are made anew with as many experts."
        )
    left = counts.pop()
    numbers: dict[str, torch.Tensor] = {}
    for layer in layers:
        mix = mixing[layer.name]
        holder = model.get_submodule(layer.name)
        for own, tensor in [*holder.named_parameters(), *holder.named_buffers()]:
            in_experts = any(tensor is held for held in layer.experts.parameters())
            is_router = tensor.shape[:1] == (layer.num_experts,) and not own.startswith("shared")
            if in_experts or is_router:
                whole = tensor.detach()
                parts = whole.view(layer.num_experts, -1, *whole.shape[1:])
                numbers[f"{layer.name}.{own}"] = _mixed(parts, mix).flatten(0, 1)
    become(model, _smaller(model, left), numbers)


def _mixed(parts: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
    """The sums of the parts of all experts; a sum of one expert has its very bits."""
    made = parts.new_empty(len(mix), *parts.shape[1:])
    for place, row in enumerate(mix):
        chosen = row.nonzero().flatten().tolist()
        if len(chosen) == 1 and float(row[chosen[0]]) == 1.0:
            made[place] = parts[chosen[0]]
        else:
            made[place] = sum(float(row[expert]) * parts[expert].double() for expert in chosen)
    return made


def _smaller(model: Any, left: int) -> Callable[[], nn.Module]:
    """What builds the same model with as many experts."""
    kind, settings = type(model), getattr(model, "config", None)
    if settings is None and not hasattr(model, "zoo_args"):
        raise TargetError(
            f"{kind.__name__}: is neither of transformers nor of the zoo, so nobody knows how to"
            " build it with fewer experts."
        )
    known = model.zoo_args() if settings is None else settings.to_dict()
    count = next((name for name in _COUNTS if name in known), None)
    if count is None or (known.get("n_group") or 1) > 1:
        why = "routes to groups of experts" if count else "says nowhere how many experts it has"
        raise TargetError(f"{kind.__name__}: {why}; its experts cannot become fewer.")
    top_k = next((known[name] for name in _TOP_K if name in known), 1)
    if left < top_k:
        raise InputError(
            f"experts: {left} would be left, and every token has {top_k}. Keep at least {top_k}."
        )
    if settings is None:
        return lambda: kind(**{**known, count: left})
    smaller = copy.deepcopy(settings)
    setattr(smaller, count, left)
    return lambda: kind(smaller)
