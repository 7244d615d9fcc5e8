# SPDX-License-Identifier: Apache-2.0
"""The Parameters of the larger model: their numbers, their masks, and where each comes from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.forms import in_form_of, mask_in
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.surgery import replace_module
from gossamer.patterns import Pattern
from gossamer.training.growth.masks import mask_between, masked_value
from gossamer.training.growth.plan import GrowthPlan
from gossamer.training.growth.roles import axes_of, layer_of
from gossamer.training.growth.tensors import Axes, Breaker, Quantity, grown_tensor
from gossamer.training.optim import SmallStateOptimizer

# Grow a tensor of the old parameter's shape to the new one's.
Grow = Callable[[torch.Tensor, Quantity], torch.Tensor]


@dataclass
class GrownParameter:
    """One Parameter of the larger model and where it comes from.

    Attributes:
        names: of all its places; several if it is tied.
        axes: what its sides stand for.
        source: the old Parameter; None if it is fresh.
        is_new: whether it belongs to a new block.
        value: its numbers, in the shape of the dense weight.
        layer: the sparse layer it comes from, if it does.
        mask: its mask; None if everything is kept.
        pattern: of the mask.
        param: the Parameter, once it has its place.
        larger_layer: the sparse layer of the larger model that holds it, if one does.
    """

    names: list[str]
    axes: Axes
    source: nn.Parameter | None
    is_new: bool
    value: torch.Tensor
    layer: Any = None
    mask: torch.Tensor | None = None
    pattern: Pattern | None = None
    param: nn.Parameter = field(default_factory=lambda: nn.Parameter(torch.empty(0)))
    larger_layer: Any = None


def find_slots(
    model: nn.Module,
    larger: nn.Module,
    plan: GrowthPlan,
    old_axes: dict[str, Axes],
    optimizer: torch.optim.Optimizer | None,
) -> list[GrownParameter]:
    """Every Parameter of the larger model with its numbers; tied names share one."""
    growth, anatomy = plan.growth, plan.anatomy
    generator = torch.Generator().manual_seed(growth.seed)
    sparse = dict(sparse_layers(model))
    like = next(model.parameters())
    made: dict[Any, GrownParameter] = {}
    for name, axes in axes_of(larger, anatomy).items():
        source, is_new = _source_name(name, plan)
        if source is None or (is_new and growth.mode == "random"):
            fresh = larger.get_parameter(name).detach()
            value = fresh.to(like.device, like.dtype, copy=True)
            made[name] = GrownParameter([name], axes, None, True, _emptied(value, name, plan))
            continue
        path, _, key = source.rpartition(".")
        layer = sparse.get(path) if key == "weight" else None
        old = model.get_parameter(source) if layer is None else layer.trained()
        # Tied names share one Parameter; copies in new blocks are their own.
        home = (id(old), name if is_new else "")
        if home in made:
            made[home].names.append(name)
            continue
        slot = _grown_slot(name, old_axes[source], old, layer, plan, optimizer, generator)
        slot.is_new = is_new
        slot.value = _emptied(slot.value, name, plan) if is_new else slot.value
        made[home] = slot
    return list(made.values())


def _grown_slot(
    name: str,
    axes: Axes,
    old: nn.Parameter,
    layer: Any,
    plan: GrowthPlan,
    optimizer: torch.optim.Optimizer | None,
    generator: torch.Generator,
) -> GrownParameter:
    growth, factors = plan.growth, plan.factors
    noise = growth.sigma if growth.symmetry == "noise" else 0.0
    numbers = old.detach()
    if isinstance(optimizer, SmallStateOptimizer) and old in optimizer.state:
        # In the precision in which it is trained.
        numbers = optimizer.master_of(old)
    mask = pattern = None
    if layer is not None:
        mask, pattern = layer.mask(), layer.pattern
        numbers = layer.spread(numbers)
        numbers = torch.where(mask.view_as(numbers), numbers, 0)
    new_mask, pattern = mask_between(axes, mask, pattern, plan, numbers.shape, generator)
    breaker = Breaker(noise, growth.blocks == "uniform")
    if new_mask is None:
        value = grown_tensor(numbers, axes, factors, "value", breaker=breaker, generator=generator)
    else:
        value = masked_value(numbers, axes, factors, noise, new_mask, generator)
    return GrownParameter([name], axes, old, False, value, layer, new_mask, pattern)


def _source_name(name: str, plan: GrowthPlan) -> tuple[str | None, bool]:
    """The old slot behind a new one, None if it is fresh, and whether the block is new."""
    inside = layer_of(name, plan.anatomy)
    if inside is None:
        return name, False
    source = plan.sources[inside[0]]
    if source.layer is None:
        return None, True
    return f"{plan.anatomy.layers}.{source.layer}.{inside[1]}", source.is_new


def _emptied(value: torch.Tensor, name: str, plan: GrowthPlan) -> torch.Tensor:
    """The value of a slot in a new block: zero where that makes the block add nothing."""
    inside = layer_of(name, plan.anatomy)
    if inside is None:
        return value
    module, _, key = inside[1].rpartition(".")
    parts, mode = plan.anatomy.block, plan.growth.mode
    is_output = module in (parts.output, parts.down)
    if mode == "out0" and is_output:
        return torch.zeros_like(value)
    if mode == "ln0" and (module in parts.norms or key == "bias"):
        return torch.zeros_like(value)
    return value


def place(larger: nn.Module, slots: list[GrownParameter]) -> None:
    """Put the Parameters where they belong, and layers into their forms."""
    for slot in slots:
        old = slot.source
        wants = True if old is None else old.requires_grad
        device = slot.value.device if old is None else old.device
        slot.param = nn.Parameter(slot.value.to(device), requires_grad=wants)
        for name in slot.names:
            path, _, key = name.rpartition(".")
            module = larger.get_submodule(path)
            there = module._parameters[key]
            if there is None or there.shape != slot.param.shape:
                found = None if there is None else list(there.shape)
                raise InputError(
                    f"grow: {name} would have shape {list(slot.param.shape)}, and the larger model"
                    f" expects {found}. Its settings do not say what its parameters are."
                )
            module._parameters[key] = slot.param
    for slot in slots:
        _sparsified(larger, slot)


def _sparsified(larger: nn.Module, grown: GrownParameter) -> None:
    """Give a layer of the larger model the form of its source, or a mask that may still move."""
    module = larger.get_submodule(grown.names[0].rpartition(".")[0])
    if grown.mask is None or grown.pattern is None:
        return
    mask = grown.mask.to(grown.param.device)
    if grown.layer is None:
        mask_in(larger, module, mask, grown.pattern)
        return
    made: Any = in_form_of(grown.layer, module, mask, grown.pattern)
    replace_module(larger, module, made)
    grown.param, grown.larger_layer = made.trained(), made


def grower(grown: GrownParameter, plan: GrowthPlan) -> Grow:
    """How tensors of the old Parameter's shape become tensors of the new one's."""
    before, after = grown.layer, grown.larger_layer

    def grow_one(tensor: torch.Tensor, quantity: Quantity) -> torch.Tensor:
        whole = tensor if before is None else before.spread(tensor)
        made = grown_tensor(whole, grown.axes, plan.factors, quantity)
        found: torch.Tensor = made if after is None else after.gathered(made)
        return found

    return grow_one
