# SPDX-License-Identifier: Apache-2.0
"""Reads the layers of an encoder of a known family, in whatever form their weights are.

`EncoderStandIn` is what encoders have in common that take the place of a stock one.

What a native encoder cannot compute is refused by name, so that the caller can say why the model
runs layer by layer.
"""

import copy
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.families import block_of
from gossamer.nn.layer_kinds import form_of, kind_name
from gossamer.nn.layer_weights import matrix_of
from gossamer.nn.surgery.carried import carried, carried_by_calls, carried_by_state
from gossamer.nn.tokens import TokenPrunedEncoder
from gossamer.nn.tokens.bert_layers import find_stacks
from gossamer.ops.engines.encoder import EncoderBlock, Norm, Product

_ACTIVATIONS = {
    "GELUActivation": "gelu",
    "GELU": "gelu",
    "ReLU": "relu",
    "SiLU": "silu",
    "SiLUActivation": "silu",
}


class EncoderStandIn(nn.Module):
    """Takes the place of an encoder inside its model.

    Attributes:
        layer: the layers of the encoder, under their old names.
        config: its configuration, where other code looks for it.
    """

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        # In a tuple, so that it is no submodule: its layers are this one's, and names stay.
        self._stock = (stock,)
        self.layer: Any = stock.layer
        self.config: Any = getattr(stock, "config", None)

    def to_compact(self) -> nn.Module:
        """The encoder it was made of, with the layers as they are now: what is saved."""
        encoder = copy.copy(self._stock[0])
        encoder.__dict__["_modules"] = {**encoder._modules, "layer": self.layer}
        return encoder


def find_encoders(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules whose list `layer` holds the layers of a known family of encoders.

    Not those that drop tokens between layers or run packed: one call would compute all tokens. Not
    those that are one native call already.
    """
    return [
        (name, module)
        for name, module in find_stacks(model, "encoder")
        if not isinstance(module, TokenPrunedEncoder | EncoderStandIn)
    ]


def read_layers(encoder: nn.Module) -> list[EncoderBlock]:
    """The layers of an encoder; TargetError names what stands in the way."""
    layers: Any = encoder.layer
    read = [_read(f"layer.{i}", layer) for i, layer in enumerate(layers)]
    _refuse_extras(encoder, layers)
    return read


def _refuse_extras(encoder: nn.Module, layers: Any) -> None:
    """Refuse what one native call would not do, though a call of the modules does."""
    parts = block_of(layers[0])
    if parts is None:
        return
    names = (*parts.linears, *parts.norms, parts.activation)
    read = {f"layer.{i}.{name}" for i in range(len(layers)) for name in names}
    home = type(layers[0]).__module__
    for name, module in encoder.named_modules():
        kind, reason = type(module), carried_by_calls(module)
        # As the family's file has it, or a module that does nothing in eval mode.
        own, idle = kind.__module__ == home, kind in (nn.Dropout, nn.Identity, nn.ModuleList)
        is_stock = kind.forward.__module__ == home if own else idle
        if reason is None and not (name in read or is_stock):
            reason = f"{kind.__name__} is no module of this family"
        if reason is None and module is encoder:
            reason = carried_by_state(encoder)
            more = {*encoder._parameters, *encoder._buffers, *encoder._modules} - {"layer"}
            reason = f"it holds {sorted(more)[0]!r} besides its layers" if more else reason
        if reason is not None:
            raise TargetError(f"{name or 'the encoder'}: {reason}.")


def _read(where: str, layer: nn.Module) -> EncoderBlock:
    parts = block_of(layer, "encoder")
    if parts is None:
        raise TargetError(f"{where}: {type(layer).__name__} is no encoder layer of a known parts.")
    if getattr(layer, "is_decoder", False) or getattr(layer, "add_cross_attention", False):
        raise TargetError(f"{where}: is a decoder layer or attends to another sequence.")
    (attention_norm, epsilon), (output_norm, other) = (
        _norm(where, layer.get_submodule(name)) for name in parts.norms
    )
    if epsilon != other:
        raise TargetError(f"{where}: its two norms have different eps.")
    try:
        projections = [_kept(where, layer, name) for name in parts.projections]
    except AttributeError:
        raise TargetError(f"{where}: has no attention heads left.") from None
    head_width = int(attrgetter(parts.head_dim)(layer))
    attention = layer.get_submodule(parts.attention)
    return EncoderBlock(
        qkv=Product.stack(projections),
        out=_kept(where, layer, parts.output),
        up=_kept(where, layer, parts.expansions[0]),
        down=_kept(where, layer, parts.down),
        attention_norm=attention_norm,
        output_norm=output_norm,
        epsilon=epsilon,
        heads=projections[0].matrix.shape[0] // head_width,
        head_width=head_width,
        scale=float(getattr(attention, "scaling", head_width**-0.5)),
        activation=_activation(where, layer, parts.activation),
    )


def _activation(where: str, layer: nn.Module, path: str) -> str:
    module = attrgetter(path)(layer)
    kind = type(module)
    known = kind.__module__.split(".")[0] in ("torch", "transformers")
    name = _ACTIVATIONS.get(kind.__name__) if known else None
    if name is None or getattr(module, "approximate", "none") != "none":
        raise TargetError(
            f"{where}: its activation {kind.__name__} has no native form; known are"
            f" {', '.join(sorted(set(_ACTIVATIONS.values())))}."
        )
    return name


def _norm(where: str, module: nn.Module) -> tuple[Norm, float]:
    if type(module) is not nn.LayerNorm or module.weight is None or module.bias is None:
        raise TargetError(f"{where}: expected a LayerNorm with gain and shift, found {module}.")
    return Norm(_float(where, module.weight), _float(where, module.bias)), float(module.eps)


def _float(where: str, values: torch.Tensor) -> torch.Tensor:
    if values.dtype is not torch.float32 or values.device.type != "cpu":
        raise TargetError(
            f"{where}: kernels are float32 on the CPU, this is {values.dtype} on {values.device}."
        )
    return values.detach()


def _kept(where: str, layer: nn.Module, name: str) -> Product:
    module: Any = layer.get_submodule(name)
    reason = carried(module)
    if reason is not None:
        raise TargetError(f"{where}: {reason}.")
    if kind_name(module) != "linear" or form_of(module) == "packed":
        raise TargetError(f"{where}: {type(module).__name__} is no linear layer this can pack.")
    matrix = matrix_of(module)
    _float(where, matrix.values)
    bias = None if module.bias is None else _float(where, module.bias)
    return Product(matrix, bias, (f"{where}.{name}",))
