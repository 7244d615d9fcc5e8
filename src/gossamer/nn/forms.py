# SPDX-License-Identifier: Apache-2.0
"""The way between the forms of a layer: dense, masked, compact.

The packed form is made by `gossamer.compile`; its classes are in `running/`.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from gossamer.errors import InputError
from gossamer.nn.layer_kinds import KINDS, form_of, kind_of
from gossamer.nn.layers import CompactWeight, MaskedOutProj, MaskedWeight, Mode
from gossamer.nn.layers.parts import SparseLayer
from gossamer.nn.layers.tables import TableLayer
from gossamer.nn.surgery import (
    READ_BY_ATTENTION,
    attention_outputs,
    inherit_hooks,
    replace_module,
)
from gossamer.nn.surgery.carried import carried, hand_over
from gossamer.patterns import Pattern

__all__ = [
    "can_mask",
    "in_form_of",
    "is_ordinary",
    "mask_in",
    "to_compact",
    "to_dense",
    "to_masked",
    "why_not_compact",
]


def is_ordinary(layer: nn.Module) -> bool:
    """Whether it is a stock layer of a kind, and no subclass of one."""
    return any(type(layer) in kind.stock for kind in KINDS.values())


def can_mask(layer: nn.Module) -> bool:
    """Whether `to_masked` takes it: an ordinary layer of a kind, or one that is trained sparse."""
    return form_of(layer) in ("masked", "compact") or is_ordinary(layer)


def why_not_compact(layer: nn.Module) -> str | None:
    """Why `to_compact` does not take it; None for an ordinary, masked or compact layer."""
    if kind_of(layer, has_masks=True) is None:
        titles = (kind.title for kind in KINDS.values() if kind.has_masks)
        return f"it is neither {' nor '.join(titles)}"
    if isinstance(layer, MaskedOutProj):
        return READ_BY_ATTENTION
    return carried(layer, inherits_hooks=True)


def in_form_of(
    layer: nn.Module,
    dense: nn.Module,
    mask: torch.Tensor | None = None,
    pattern: Pattern | None = None,
) -> nn.Module:
    """`dense` in the form that `layer` has, with its mask or another; itself if it is ordinary."""
    if not isinstance(layer, SparseLayer):
        return dense
    made: Any = type(layer)
    options = (layer.mode,) if isinstance(layer, CompactWeight) else ()
    kept = layer.mask() if mask is None else mask
    result: nn.Module = made.from_dense(dense, kept, pattern or layer.pattern, *options)
    return result


def to_dense(layer: nn.Module) -> nn.Module:
    """An ordinary layer with the weights, zeros included, the bias and the hooks of `layer`."""
    if not isinstance(layer, SparseLayer | TableLayer):
        return layer
    dense: nn.Module = layer.to_dense()  # type: ignore[operator]
    inherit_hooks(dense, layer)
    hand_over(dense, layer)
    if "bias" in dense._parameters:
        dense._parameters["bias"] = layer._parameters["bias"]
    return dense


def to_masked(layer: nn.Module, mask: torch.Tensor, pattern: Pattern) -> MaskedWeight:
    """A masked layer in the place of `layer`, with its Parameters and hooks."""
    if form_of(layer) == "compact":
        layer = to_dense(layer)
    kind = _kind(layer, "masked")
    read_by_attention = isinstance(layer, MaskedOutProj | NonDynamicallyQuantizableLinear)
    chosen: Any = MaskedOutProj if read_by_attention else kind.masked
    masked: MaskedWeight = chosen.from_dense(layer, mask, pattern)
    return masked


def mask_in(
    model: nn.Module, layer: nn.Module, mask: torch.Tensor, pattern: Pattern
) -> MaskedWeight:
    """Mask a layer of `model`: a masked one moves its mask, an ordinary one is replaced."""
    if isinstance(layer, MaskedWeight):
        layer.pattern = pattern
        layer.set_mask(mask)
        return layer
    masked = (
        MaskedOutProj.from_dense(layer, mask, pattern)
        if id(layer) in attention_outputs(model)
        else to_masked(layer, mask, pattern)
    )
    replace_module(model, layer, masked)
    return masked


def to_compact(
    layer: nn.Module,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    pattern: Pattern,
    mode: Mode = "jit",
) -> CompactWeight:
    """A compact layer of these kept values in the place of `layer`, with its bias and hooks."""
    kind = _kind(layer, "compact")
    settings, bias = kind.settings(layer), layer._parameters.get("bias")
    compact: CompactWeight = kind.compact(
        values, mask_bits, settings, bias, pattern=pattern, mode=mode
    )
    inherit_hooks(compact, layer)
    hand_over(compact, layer)
    return compact


def _kind(layer: nn.Module, form: str) -> Any:
    kind = kind_of(layer, has_masks=True)
    if kind is None:
        raise InputError(
            f"a {type(layer).__name__} cannot be {form}: it is of no layer kind with masks."
        )
    return kind
