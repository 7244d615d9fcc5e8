# SPDX-License-Identifier: Apache-2.0
"""The table of layer kinds, and what can be asked of a layer in any form.

A kind is a row of `KINDS`. Everybody else asks here, or a layer itself (`SparseLayer`), and never
which class a layer is. The way between the forms is `nn/forms/`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from gossamer.formats import SparseMatrix
from gossamer.nn.layers import Conv2d, Linear, MaskedConv2d, MaskedLinear, SparseLayer
from gossamer.nn.layers.parts import Form
from gossamer.patterns import detect_pattern

__all__ = [
    "KINDS",
    "density_of",
    "form_of",
    "kind_name",
    "kind_of",
    "matrix_of",
    "shape_of",
    "sparse_layers",
    "title_of",
    "weight_of",
]


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
            Linear.settings_of,
        ),
        LayerKind("conv", "Conv2d", (nn.Conv2d,), MaskedConv2d, Conv2d, Conv2d.settings_of),
    )
}


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
