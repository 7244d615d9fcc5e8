# SPDX-License-Identifier: Apache-2.0
"""The table of layer kinds: which ordinary layers can be sparse, and the way between their forms.

A kind is a row. Everybody else asks here, or a layer itself (`SparseLayer`), and never which class
a layer is. The packed form is made by `gossamer.compile`; its classes are in `running/`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from gossamer.errors import InputError
from gossamer.formats import SparseMatrix
from gossamer.nn.layers import (
    CompactWeight,
    Conv2d,
    Linear,
    MaskedConv2d,
    MaskedLinear,
    MaskedOutProj,
    MaskedWeight,
    Mode,
    SparseLayer,
)
from gossamer.nn.layers.sparse_layer import Form
from gossamer.nn.surgery.carried import carried, hand_over, know_layers
from gossamer.nn.surgery.fastpath import READ_BY_ATTENTION, attention_outputs
from gossamer.nn.surgery.replace import inherit_hooks, replace_module
from gossamer.ops.conv import ConvSettings
from gossamer.patterns import Pattern, detect_pattern


@dataclass(frozen=True)
class LayerKind:
    """One kind of layer.

    Attributes:
        name: as `SparseLayer.kind` has it.
        title: as tables for people show it.
        stock: the ordinary classes.
        masked, compact: the classes of the two forms that are trained.
        settings: what the compact class takes besides values and mask, read from any form.
    """

    name: str
    title: str
    stock: tuple[type[nn.Module], ...]
    masked: Any
    compact: Any
    settings: Callable[[Any], Any]


KINDS: Final = {
    kind.name: kind
    for kind in (
        LayerKind(
            "linear",
            "Linear",
            (nn.Linear, NonDynamicallyQuantizableLinear),
            MaskedLinear,
            Linear,
            lambda layer: layer.in_features,
        ),
        LayerKind("conv", "Conv2d", (nn.Conv2d,), MaskedConv2d, Conv2d, ConvSettings.of),
    )
}

for _kind in KINDS.values():
    know_layers(_kind.stock[0], _kind.masked, _kind.compact)


def kind_of(layer: nn.Module) -> LayerKind | None:
    """The row of a layer in any form; None for modules of no kind."""
    if isinstance(layer, SparseLayer):
        return KINDS[layer.kind]
    return next((kind for kind in KINDS.values() if isinstance(layer, kind.stock)), None)


def kind_name(layer: nn.Module) -> str:
    """The name of a layer's kind, "" for modules of no kind."""
    kind = kind_of(layer)
    return "" if kind is None else kind.name


def title_of(layer: nn.Module) -> str:
    """The kind of a layer as tables for people show it."""
    kind = kind_of(layer)
    return type(layer).__name__ if kind is None else kind.title


def form_of(layer: nn.Module) -> Form | Literal["dense"] | None:
    """One of "dense", "masked", "compact" and "packed"; None for modules of no kind."""
    if isinstance(layer, SparseLayer):
        return layer.form
    return None if kind_of(layer) is None else "dense"


def sparse_layers(model: nn.Module, *forms: Form) -> Iterator[tuple[str, Any]]:
    """(name, layer) of the sparse layers of a model, each once; of these forms, or of all."""
    for name, module in model.named_modules():
        if isinstance(module, SparseLayer) and (not forms or module.form in forms):
            yield name, module


def can_mask(layer: nn.Module) -> bool:
    """Whether `to_masked` takes it: an ordinary layer of a kind, or one that is trained sparse."""
    form, kind = form_of(layer), kind_of(layer)
    return form in ("masked", "compact") or (kind is not None and type(layer) in kind.stock)


def why_not_compact(layer: nn.Module) -> str | None:
    """Why `to_compact` does not take it; None for an ordinary, masked or compact layer."""
    if kind_of(layer) is None:
        return f"it is neither {' nor '.join(kind.title for kind in KINDS.values())}"
    if isinstance(layer, MaskedOutProj):
        return READ_BY_ATTENTION
    return carried(layer, inherits_hooks=True)


def matrix_of(layer: nn.Module) -> SparseMatrix:
    """The sparse weight of a layer; of an ordinary one, what is not zero and the pattern of it."""
    if isinstance(layer, SparseLayer):
        return layer.matrix()
    weight = weight_of(layer)
    mask_RK = weight.flatten(1) != 0
    return SparseMatrix.from_dense(weight, mask_RK, detect_pattern(mask_RK))


def weight_of(layer: nn.Module) -> torch.Tensor:
    """The weight of a layer in any form, in its own shape, exact zeros included; no gradients."""
    if isinstance(layer, SparseLayer):
        return layer.dense_weight()
    with torch.no_grad():
        weight: Any = layer.weight  # of subclasses, too: it may be computed
    found: torch.Tensor = weight.detach()
    return found


def shape_of(layer: nn.Module) -> tuple[int, ...]:
    """The shape of the weight of a layer in any form."""
    if isinstance(layer, SparseLayer):
        return layer.weight_shape
    return tuple(weight_of(layer).shape)


def density_of(layer: nn.Module) -> float:
    """Kept fraction of a sparse layer; of an ordinary one, the share that is not zero."""
    if isinstance(layer, SparseLayer):
        return layer.density
    weight = weight_of(layer)
    return float((weight != 0).float().mean()) if weight.numel() else 1.0


def in_form_of(layer: nn.Module, dense: nn.Module) -> nn.Module:
    """`dense` with the form, mask and pattern that `layer` has; itself where that is ordinary."""
    if not isinstance(layer, SparseLayer):
        return dense
    made: Any = type(layer)
    options = (layer.mode,) if isinstance(layer, CompactWeight) else ()
    result: nn.Module = made.from_dense(dense, layer.mask(), layer.pattern, *options)
    return result


def to_dense(layer: nn.Module) -> nn.Module:
    """An ordinary layer with the weights, zeros included, the bias and the hooks of `layer`."""
    if not isinstance(layer, SparseLayer):
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
    kind = kind_of(layer)
    if kind is None:
        raise InputError(f"a {type(layer).__name__} cannot be masked: it is of no layer kind.")
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
        MaskedOutProj.from_dense(layer, mask, pattern)  # type: ignore[arg-type]
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
    kind = kind_of(layer)
    if kind is None:
        raise InputError(f"a {type(layer).__name__} cannot be compact: it is of no layer kind.")
    settings, bias = kind.settings(layer), layer._parameters.get("bias")
    compact: CompactWeight = kind.compact(
        values, mask_bits, settings, bias, pattern=pattern, mode=mode
    )
    inherit_hooks(compact, layer)
    hand_over(compact, layer)
    return compact
