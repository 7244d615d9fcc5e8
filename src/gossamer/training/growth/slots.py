# SPDX-License-Identifier: Apache-2.0
"""The Parameters of the larger model: their numbers, their masks, and where each comes from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.forms import mask_in, to_compact
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.surgery import replace_module
from gossamer.ops.training import expand, gather
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
    mask = None if layer is None else layer.mask()
    if layer is not None and layer.form == "compact":
        numbers = expand(numbers, layer.mask_bits, layer.matrix_shape[1]).view(layer.weight_shape)
    elif mask is not None:
        numbers = torch.where(mask.view_as(numbers), numbers, 0)
    pattern = None if layer is None else layer.pattern
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
        if slot.mask is not None and slot.pattern is not None:
            _sparsified(larger, slot, slot.mask, slot.pattern)


def _sparsified(
    larger: nn.Module, slot: GrownParameter, mask: torch.Tensor, pattern: Pattern
) -> None:
    path = slot.names[0].rpartition(".")[0]
    module = larger.get_submodule(path)
    mask = mask.to(slot.param.device)
    masked = mask_in(larger, module, mask, pattern)
    if slot.layer is not None and slot.layer.form == "compact":
        values = nn.Parameter(gather(slot.param.detach(), mask), slot.param.requires_grad)
        compact = to_compact(masked, values, masked.mask_bits, pattern, slot.layer.mode)
        replace_module(larger, masked, compact)
        slot.param = values


def grower(slot: GrownParameter, plan: GrowthPlan) -> Grow:
    """How tensors of the old Parameter's shape become tensors of the new one's."""
    layer, mask = slot.layer, slot.mask
    is_compact = layer is not None and layer.form == "compact"

    def grow_one(tensor: torch.Tensor, quantity: Quantity) -> torch.Tensor:
        if is_compact:
            dense = expand(tensor, layer.mask_bits, layer.matrix_shape[1])
            tensor = dense.view(layer.weight_shape)
        grown = grown_tensor(tensor, slot.axes, plan.factors, quantity)
        return gather(grown, mask) if is_compact and mask is not None else grown

    return grow_one
