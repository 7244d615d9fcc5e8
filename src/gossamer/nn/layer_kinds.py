# SPDX-License-Identifier: Apache-2.0
"""The table of layer kinds: which one a layer is, and in which form.

A kind is a row of `KINDS`, found by `kind_of`. Everybody else asks here, or a layer itself
(`SparseLayer`), and never which class a layer is; `sparse_layers` walks those of a model. What a
layer weighs says `nn/layer_weights.py`; the way between the forms is `nn/forms.py`. `MOVING` has
the layers whose masks a schedule moves just now.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal
from weakref import WeakSet

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from gossamer.nn.layers import Conv2d, Linear, MaskedConv2d, MaskedLinear
from gossamer.nn.layers.experts import Experts, GroupedLinear, MaskedExperts
from gossamer.nn.layers.parts import Form, SparseLayer
from gossamer.nn.layers.tables import TableLayer

__all__ = [
    "KINDS",
    "MOVING",
    "form_of",
    "kind_name",
    "kind_of",
    "sparse_layers",
    "title_of",
]

# A second schedule would undo the work of the first, and a larger model made in between would not
# know of it. A copy of a layer is not in here.
MOVING: "Final[WeakSet[nn.Module]]" = WeakSet()


@dataclass(frozen=True)
class LayerKind:
    """One kind of layer.

    Attributes:
        name: as `SparseLayer.kind` has it.
        title: as tables for people show it.
        stock: the ordinary classes, which are of the kind as they are. Tables are of theirs once
            they are quantised: ordinary ones run as torch runs them.
        masked, compact: the classes of the two forms that are trained; None for a kind without
            masks, whose layers are trained in a form of their own.
        settings: what the compact class takes besides values and mask, read from any form.
    """

    name: str
    title: str
    stock: tuple[type[nn.Module], ...]
    masked: Any
    compact: Any
    settings: Callable[[Any], Any]

    @property
    def has_masks(self) -> bool:
        """Whether layers of this kind can be pruned."""
        return self.masked is not None


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
        LayerKind(
            "experts", "Experts", (GroupedLinear,), MaskedExperts, Experts, Experts.settings_of
        ),
        LayerKind("table", "Table", (), None, None, lambda layer: layer.rounding),
    )
}


def kind_of(layer: nn.Module, *, has_masks: bool = False) -> LayerKind | None:
    """The row of a layer in any form; None for modules of no kind, or of none with masks."""
    if isinstance(layer, TableLayer):
        return None if has_masks else KINDS[layer.kind]
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
    """One of "dense", "masked", "compact", "trained", "packed"; None for modules of no kind."""
    if isinstance(layer, SparseLayer | TableLayer):
        return layer.form
    return None if kind_of(layer) is None else "dense"


def sparse_layers(model: nn.Module, *forms: Form) -> Iterator[tuple[str, Any]]:
    """(name, layer) of the sparse layers of a model, each once; of these forms, or of all."""
    for name, module in model.named_modules():
        if isinstance(module, SparseLayer) and (not forms or module.form in forms):
            yield name, module
