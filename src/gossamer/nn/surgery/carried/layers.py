# SPDX-License-Identifier: Apache-2.0
"""What a layer carries that another layer in its place would not, and what is handed over."""

import functools

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from gossamer.nn.layer_kinds import KINDS
from gossamer.nn.layers import CompactWeight, MaskedOutProj
from gossamer.nn.surgery.carried.calls import (
    carried_by_calls,
    carried_by_state,
    is_as_written,
    own_call,
)

_WEIGHTS = frozenset({"weight", "bias"})
_MASKED = _WEIGHTS | {"mask_bits", "_mask", "_reach"}
# Tensors that a layer has by itself. Other classes have a forward of their own.
_TENSORS: dict[type[nn.Module], frozenset[str]] = {
    nn.BatchNorm2d: _WEIGHTS | {"running_mean", "running_var", "num_batches_tracked"},
    MaskedOutProj: _MASKED,
}
for _kind in KINDS.values():
    _TENSORS[_kind.stock[0]] = _WEIGHTS
    _TENSORS[_kind.masked] = _MASKED
    _TENSORS[_kind.compact] = frozenset({"values", "bias", "mask_bits"})
LEFT = "_gossamer_left"
# Attributes that gossamer leaves on layers, that compact layers have, and that packed ones have.
_NOTES = frozenset({"pattern", "gradient_sum", "choices", LEFT})
_COMPACT = frozenset({"matrix_shape", "mode", "settings", "_dense", "_dense_source", "_home"})
_TAKEN = frozenset({"runs", "format", "density", "packed", "settings", "dense_weight"})


def carried(layer: nn.Module, *, inherits_hooks: bool = False) -> str | None:
    """What a layer carries that another layer in its place would not; None if nothing.

    Plain attributes are no obstacle: `hand_over` gives them to the new layer.

    Args:
        layer: Linear, Conv2d or BatchNorm2d, stock, masked or compact.
        inherits_hooks: the new layer is a module like the old one and gets its hooks by
            `gossamer.nn.inherit_hooks`.
    """
    if is_parametrized(layer):
        return "it is parametrized (torch.nn.utils.parametrize); make that permanent first"
    reason = own_call(layer) if inherits_hooks else carried_by_calls(layer)
    reason = reason or carried_by_state(layer)
    if reason is not None:
        return reason
    tensors = _TENSORS.get(type(layer))
    if tensors is None or not is_as_written(type(layer).forward):
        return f"{type(layer).__name__} is a class of its own, whose forward may do anything"
    computed = sorted(tensors & layer.__dict__.keys())
    if computed:
        return f"its {computed[0]} is computed, no Parameter of the layer"
    further = sorted({*layer._parameters, *layer._buffers} - tensors)
    if further:
        return f"it holds a tensor of its own, {further[0]!r}"
    if layer._modules:
        return f"it holds a module, {next(iter(layer._modules))!r}"
    plain = (nn.Parameter, nn.Buffer)
    special = [p for p in layer._parameters.values() if p is not None and type(p) not in plain]
    if special:
        return f"its weights are {type(special[0]).__name__}, no plain Parameters"
    hidden = [name for name in _attributes(layer) if hasattr(type(layer), name) or name in _TAKEN]
    return f"its attribute {hidden[0]!r} was replaced on this instance" if hidden else None


def hand_over(new: nn.Module, old: nn.Module) -> None:
    """Give `new` the plain attributes that users set on `old`."""
    for name in _attributes(old):
        new.__dict__.setdefault(name, old.__dict__[name])


def leave(module: nn.Module, reason: str) -> None:
    """Leave on a module why it stayed what it was, for `explain`."""
    module.__dict__[LEFT] = reason


def _attributes(layer: nn.Module) -> list[str]:
    """What users set on a layer, by name."""
    known = _stock_attributes() | _NOTES
    if isinstance(layer, CompactWeight):
        known |= _COMPACT
    return [name for name in layer.__dict__ if name not in known]


@functools.cache
def _stock_attributes() -> frozenset[str]:
    """Those that layers have from their constructors."""
    stock = (nn.Conv2d(1, 1, 1, device="meta"), nn.Linear(1, 1, device="meta"))
    return frozenset().union(*map(vars, (*stock, nn.BatchNorm2d(1, device="meta"))))
