# SPDX-License-Identifier: Apache-2.0
"""One layer with fewer channels, in place: `resize`; masks and the optimizer's state follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.errors import PatternError, TargetError
from gossamer.nn.forms import in_form_of, to_dense, to_masked
from gossamer.nn.layer_kinds import form_of
from gossamer.nn.layers import MaskedWeight
from gossamer.nn.layers.shortcut import PaddedShortcut, padding_of
from gossamer.nn.surgery import replace_module
from gossamer.nn.surgery.channels.reading import Role
from gossamer.nn.surgery.optimizer_state import check_state, convert_state, swap_parameter
from gossamer.patterns import Pattern, Unstructured

Optimizer = torch.optim.Optimizer | None


@dataclass(frozen=True)
class LayerSizes:
    """How many channels one layer has.

    Attributes:
        outputs: that it makes.
        inputs: that it reads; 0 of norms.
        before: of the outputs of a shortcut, those in front that are 0.
    """

    outputs: int
    inputs: int = 0
    before: int = 0


@dataclass(frozen=True)
class Kept:
    """What stays of a layer, by place and in order.

    Attributes:
        role: of the layer.
        inputs: channels that it still reads.
        outputs: channels that it still makes.
        all_inputs, all_outputs: how many there were.
    """

    role: Role
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    all_inputs: int
    all_outputs: int


def resize(
    model: nn.Module, name: str, kept: Kept, optimizer: Optimizer = None
) -> tuple[LayerSizes, LayerSizes]:
    """Take the other channels out of a layer of `model`; its sizes before and after."""
    layer = model.get_submodule(name)
    if kept.role == "shortcut":
        return _shorten(model, layer, kept)
    if isinstance(layer, _BatchNorm):
        _narrow(layer, torch.tensor(kept.outputs, dtype=torch.long), optimizer, name)
        return LayerSizes(kept.all_outputs), LayerSizes(layer.num_features)
    before = LayerSizes(kept.all_outputs, kept.all_inputs)
    if form_of(layer) == "compact" and optimizer is not None:
        raise TargetError(
            f"{name}: is compact, and its values cannot be cut while they are trained. Cut channels"
            " before gossamer.compact."
        )
    take = _taking(name, kept, int(getattr(layer, "groups", 1)))
    dense = _ordinary(layer)
    old = layer.weight_parameter() if isinstance(layer, MaskedWeight) else dense.weight
    if form_of(layer) != "compact":
        _change(dense, "weight", old, take, optimizer, name)
    else:
        dense.weight = nn.Parameter(take(dense.weight.detach()), dense.weight.requires_grad)
    if dense.bias is not None:
        rows = torch.tensor(kept.outputs, dtype=torch.long)
        _change(dense, "bias", dense.bias, lambda bias: bias[rows.to(bias.device)], optimizer, name)
    _say_sizes(dense, kept)
    if dense is not layer:
        _put(model, layer, dense, take)
    return before, LayerSizes(len(kept.outputs), len(kept.inputs))


def _ordinary(layer: Any) -> Any:
    """The layer itself, or the ordinary one it stands for; of a masked one without a mask."""
    return layer if form_of(layer) in ("dense", None) else to_dense(layer)


def _put(
    model: nn.Module, layer: Any, dense: Any, take: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """The cut layer in the place of a masked or compact one, in its form if zeros are left."""
    mask = take(layer.mask().view(layer.weight_shape)).flatten(1)
    pattern: Pattern = layer.pattern
    try:
        pattern.check_shape(tuple(mask.shape), "")
        pattern.validate(mask)
    except PatternError:
        # Groups of neighbours are others now; which weights are kept has not changed.
        pattern = Unstructured()
    if layer.form == "compact":
        replace_module(model, layer, in_form_of(layer, dense, mask, pattern))
    else:
        replace_module(model, layer, dense if mask.all() else to_masked(dense, mask, pattern))


def _taking(name: str, kept: Kept, groups: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that cuts a weight [out, in / groups, ...]."""
    rows = torch.tensor(kept.outputs, dtype=torch.long)
    columns = torch.tensor(kept.inputs, dtype=torch.long)
    if groups == 1:
        return lambda weight: weight[rows.to(weight.device)][:, columns.to(weight.device)]
    if groups == kept.all_inputs == kept.all_outputs:
        if kept.inputs != kept.outputs:
            raise TargetError(f"{name}: a depthwise convolution makes the channels that it reads.")
        return lambda weight: weight[rows.to(weight.device)]
    out_each = _even(name, kept.outputs, kept.all_outputs, groups)
    in_each = _even(name, kept.inputs, kept.all_inputs, groups)
    width = kept.all_inputs // groups

    def take(weight: torch.Tensor) -> torch.Tensor:
        parts = zip(rows.view(groups, out_each), columns.view(groups, in_each), strict=True)
        return torch.cat([weight[of][:, reads % width] for of, reads in parts])

    return take


def _even(name: str, kept: Sequence[int], channels: int, groups: int) -> int:
    """How many channels each group keeps; TargetError if that differs."""
    each = channels // groups
    counts = [sum(place // each == group for place in kept) for group in range(groups)]
    if len(set(counts)) != 1:
        raise TargetError(
            f"{name}: its {groups} groups would keep {', '.join(map(str, counts[:8]))} channels,"
            " and a convolution has as many in each. Keep the same number in every group."
        )
    return counts[0]


def _change(
    layer: Any,
    name: str,
    old: nn.Parameter,
    take: Callable[[torch.Tensor], torch.Tensor],
    optimizer: Optimizer,
    where: str,
) -> None:
    """Give a layer a smaller Parameter; the optimizer's state of `old` moves along."""
    new = nn.Parameter(take(layer._parameters[name].detach()).contiguous(), old.requires_grad)
    if optimizer is not None:
        check_state(optimizer, old, f"{where}.{name}")
        swap_parameter(optimizer, old, new, convert_state(optimizer, old, take))
    setattr(layer, name, new)


def _narrow(norm: _BatchNorm, places: torch.Tensor, optimizer: Optimizer, where: str) -> None:
    def take(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[places.to(tensor.device)]

    for name in ("weight", "bias") if norm.affine else ():
        _change(norm, name, norm.get_parameter(name), take, optimizer, where)
    for name in ("running_mean", "running_var"):
        if norm._buffers.get(name) is not None:
            setattr(norm, name, take(norm.get_buffer(name)).clone())
    norm.num_features = len(places)


def _say_sizes(layer: Any, kept: Kept) -> None:
    is_conv = hasattr(layer, "out_channels")
    for name, places in (("out", kept.outputs), ("in", kept.inputs)):
        setattr(layer, f"{name}_{'channels' if is_conv else 'features'}", len(places))
    if is_conv and layer.groups > 1 and layer.groups == kept.all_inputs == kept.all_outputs:
        layer.groups = len(kept.outputs)


def _shorten(model: nn.Module, layer: nn.Module, kept: Kept) -> tuple[LayerSizes, LayerSizes]:
    padding = padding_of(layer)
    if padding is None:
        raise TargetError(f"a {type(layer).__name__} is no shortcut that pads channels.")
    before = sum(place < padding.before for place in kept.outputs)
    after = len(kept.outputs) - before - len(kept.inputs)
    replace_module(model, layer, PaddedShortcut(before, after, padding.stride))
    return (
        LayerSizes(kept.all_outputs, kept.all_inputs, padding.before),
        LayerSizes(len(kept.outputs), len(kept.inputs), before),
    )
