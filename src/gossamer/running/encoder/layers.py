# SPDX-License-Identifier: Apache-2.0
"""Reads the layers of an encoder of a known family, in whatever form their weights are.

An encoder is the module that runs the layers: BERT's encoder, or all of a ViT. `EncoderStandIn` is
what encoders have in common that take the place of a stock one.

What a native encoder cannot compute is refused by name, so that the caller can say why the model
runs layer by layer.

Legend: H heads, T tokens, D features.
"""

import copy
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from gossamer.errors import TargetError
from gossamer.formats import SparseMatrix
from gossamer.nn.attention import refuse_patterns
from gossamer.nn.families import BlockParts, EncoderFacts, answers, block_of
from gossamer.nn.layer_kinds import form_of, kind_name
from gossamer.nn.layer_weights import matrix_of
from gossamer.nn.surgery.carried import carried, carried_by_calls, carried_by_state
from gossamer.nn.tokens import TokenPrunedEncoder
from gossamer.ops.engines.encoder import DistanceBias, EncoderBlock, Norm, Product, Rotation

_ACTIVATIONS = {
    "GELUActivation": "gelu",
    "GELU": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "QuickGELUActivation": "quick_gelu",
    "ReLU": "relu",
    "SiLU": "silu",
    "SiLUActivation": "silu",
}
# Rotations whose frequencies do not change with the length of a sequence.
_ROTATIONS = ("default", "linear", "llama3", "yarn", "proportional")


class EncoderStandIn(nn.Module):
    """Takes the place of an encoder inside its model, with the same modules under the same names.

    Attributes:
        config: its configuration, where other code looks for it.
    """

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        # In a tuple, so that it is no submodule: its layers are this one's, and names stay.
        self._stock = (stock,)
        for name, module in stock.named_children():
            self.add_module(name, module)
        self.config: Any = getattr(stock, "config", None)

    def to_compact(self) -> nn.Module:
        """The encoder it was made of, with the layers as they are now: what is saved."""
        encoder = copy.copy(self._stock[0])
        encoder.__dict__["_modules"] = {**encoder._modules, **self._modules}
        return encoder


def facts_of(encoder: nn.Module) -> EncoderFacts | None:
    """What is known of the family whose layers a module runs; None if it runs none."""
    every: dict[str, EncoderFacts] = answers("encoder")
    for name, facts in every.items():
        parts = answers("block")[name]
        blocks = [block for _, block in blocks_of(encoder, facts)]
        is_other = facts.config and type(getattr(encoder, "config", None)).__name__ != facts.config
        if blocks and not is_other and all(block_of(block) is parts for block in blocks):
            return facts
    return None


def blocks_of(encoder: nn.Module, facts: EncoderFacts) -> Iterator[tuple[str, nn.Module]]:
    """The layers in the order in which they run, shared ones several times, with their names."""
    layers = getattr(encoder, facts.layers, None)
    if not isinstance(layers, nn.ModuleList) or isinstance(encoder, nn.ModuleList):
        return
    children = list(layers.named_children())
    if not facts.groups:
        yield from ((f"{facts.layers}.{name}", block) for name, block in children)
        return
    config: Any = getattr(encoder, "config", None)
    count = int(config.num_hidden_layers) if children else 0
    for i in range(count):
        name, group = children[int(i / (count / len(children)))]
        start = f"{facts.layers}.{name}.{facts.groups}"
        for inner, block in group.get_submodule(facts.groups).named_children():
            yield f"{start}.{inner}", block


def find_encoders(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules that run the layers of a known family of encoders.

    Not those that drop tokens between layers or run packed: one call would compute all tokens. Not
    those that are one native call already.
    """
    return [
        (name, module)
        for name, module in model.named_modules()
        if not isinstance(module, TokenPrunedEncoder | EncoderStandIn)
        and (facts := facts_of(module)) is not None
        and type(getattr(module, facts.layers)) is nn.ModuleList
    ]


def read_layers(encoder: nn.Module) -> list[EncoderBlock]:
    """The layers of an encoder; TargetError names what stands in the way."""
    facts = facts_of(encoder)
    if facts is None:
        raise TargetError(f"{type(encoder).__name__} runs no encoder layers of a known family.")
    refuse_patterns(encoder, "one native call computes all pairs")
    read: dict[int, EncoderBlock] = {}
    blocks = list(blocks_of(encoder, facts))
    bias = _bias(encoder, facts)
    for where, block in blocks:
        if id(block) not in read:
            read[id(block)] = _Reader(where, block, encoder, facts).read(bias)
    _refuse_extras(encoder, facts, blocks)
    layers = [read[id(block)] for _, block in blocks]
    if facts.is_model and layers[0].bias.window:
        # Its model gives it the mask of a window, which does not say what is padding.
        raise TargetError(f"{blocks[0][0]}: the first layer sees near tokens only.")
    return layers


def _refuse_extras(
    encoder: nn.Module, facts: EncoderFacts, blocks: list[tuple[str, nn.Module]]
) -> None:
    """Refuse what one native call would not do, though a call of the modules does."""
    parts = block_of(blocks[0][1])
    if parts is None:
        return
    scales = [path.rpartition(".")[0] for path in facts.scales]
    names = (*parts.linears, *parts.norms, *scales, parts.activation)
    read = {f"{where}.{name}" for where, _ in blocks for name in names}
    if facts.bias_table:
        read.add(facts.bias_table)
    home = type(blocks[0][1]).__module__
    for name, module in encoder.named_modules():
        called = facts.front and f"{name}.".startswith(f"{facts.front}.")
        outside = facts.is_model and not f"{name}.".startswith(f"{facts.layers}.")
        if called or outside:
            continue
        kind, reason = type(module), carried_by_calls(module)
        # As the family's file has it, or a module that does nothing in eval mode.
        own, idle = kind.__module__ == home, kind in (nn.Dropout, nn.Identity, nn.ModuleList)
        is_stock = kind.forward.__module__ == home if own else idle
        if reason is None and not (name in read or is_stock):
            reason = f"{kind.__name__} is no module of this family"
        if reason is None and module is encoder:
            reason = carried_by_state(encoder)
            more = {*encoder._parameters, *encoder._buffers, *encoder._modules}
            more -= {facts.layers, facts.front, facts.bias_table}
            reason = f"it holds {sorted(more)[0]!r} besides its layers" if more else reason
        if reason is not None:
            raise TargetError(f"{name or 'the encoder'}: {reason}.")


def _bias(encoder: Any, facts: EncoderFacts) -> torch.Tensor:
    """What is added to scores [H, 2 T - 1] by query minus key, from the farthest before it on."""
    if not facts.bias:
        return torch.empty(0, 0)
    tokens = int(encoder.config.max_position_embeddings)
    with torch.no_grad():
        bias_HTT = getattr(encoder, facts.bias)(torch.zeros(1, tokens, 1))[0]
    by_distance = torch.cat([bias_HTT[:, 0, 1:].flip(1), bias_HTT[:, :, 0]], dim=1)
    return _float("the bias of its scores", by_distance)


class _Reader:
    """Reads one layer."""

    def __init__(
        self, where: str, layer: nn.Module, encoder: nn.Module, facts: EncoderFacts
    ) -> None:
        parts = block_of(layer, "encoder")
        if parts is None:
            raise TargetError(f"{where}: {type(layer).__name__} is no layer of a known encoder.")
        self.where, self.layer, self.encoder, self.facts = where, layer, encoder, facts
        self.parts: BlockParts = parts

    def read(self, bias: torch.Tensor) -> EncoderBlock:
        """The layer; `bias`: what its encoder adds to scores."""
        where, layer, parts = self.where, self.layer, self.parts
        if getattr(layer, "is_decoder", False) or getattr(layer, "add_cross_attention", False):
            raise TargetError(f"{where}: is a decoder layer or attends to another sequence.")
        norm_first = parts.norm_first
        if isinstance(norm_first, str):
            norm_first = bool(attrgetter(norm_first)(layer))
        norms = [_norm(where, layer.get_submodule(name), norm_first) for name in parts.norms]
        epsilons = {epsilon for norm, epsilon in norms if norm is not None}
        if len(epsilons) > 1:
            raise TargetError(f"{where}: its two norms have different eps.")
        try:
            qkv = Product.stack([self._kept(name) for name in parts.projections])
        except AttributeError:
            raise TargetError(f"{where}: has no attention heads left.") from None
        head_width = int(attrgetter(parts.head_dim)(layer))
        out, down = self._kept(parts.output), self._kept(parts.down)
        if self.facts.scales:
            scales = [_float(where, attrgetter(path)(layer)) for path in self.facts.scales]
            out, down = _scaled(out, scales[0]), _scaled(down, scales[1])
        attention = layer.get_submodule(parts.attention)
        return EncoderBlock(
            qkv=qkv,
            out=out,
            up=Product.stack([self._kept(name) for name in parts.expansions]),
            down=down,
            attention_norm=norms[0][0],
            output_norm=norms[1][0],
            epsilon=max(epsilons, default=0.0),
            heads=qkv.matrix.shape[0] // 3 // head_width,
            head_width=head_width,
            scale=float(getattr(attention, "scaling", head_width**-0.5)),
            activation=_activation(where, layer, parts.activation),
            norm_first=norm_first,
            is_gated=len(parts.expansions) * parts.expansion_segments == 2,
            rotation=self._rotation(head_width),
            bias=DistanceBias(bias, self._window()),
        )

    def _kept(self, name: str) -> Product:
        where = f"{self.where}.{name}"
        module: Any = self.layer.get_submodule(name)
        reason = carried(module)
        if reason is not None:
            raise TargetError(f"{where}: {reason}.")
        if kind_name(module) != "linear" or form_of(module) == "packed":
            raise TargetError(f"{where}: {type(module).__name__} is no linear layer this can pack.")
        matrix = matrix_of(module)
        _float(where, matrix.values)
        bias = None if module.bias is None else _float(where, module.bias)
        # As the module calls it that the native call takes the place of.
        inside = where.removeprefix(f"{self.facts.layers}.") if self.facts.is_model else where
        return Product(matrix, bias, (inside,))

    def _window(self) -> int:
        """The farthest distance at which tokens are seen; 0: all are."""
        if not self.facts.window:
            return 0
        found = attrgetter(self.facts.window)(self.layer)
        if found is None:
            return 0
        if int(found) < 2:
            raise TargetError(f"{self.where}: a window of {int(found) - 1} sees no other token.")
        return int(found) - 1

    def _rotation(self, head_width: int) -> Rotation:
        if not self.facts.rotary:
            return Rotation()
        rotary: Any = self.encoder.get_submodule(self.facts.rotary)
        kind = getattr(self.layer, "attention_type", "")
        named = f"{kind}_" if hasattr(rotary, f"{kind}_inv_freq") else ""
        rope = rotary.rope_type[kind] if named else rotary.rope_type
        frequencies = _float(self.where, getattr(rotary, f"{named}inv_freq"))
        if rope not in _ROTATIONS or 2 * len(frequencies) != head_width:
            raise TargetError(
                f"{self.where}: a rotation {rope!r} of {2 * len(frequencies)} of {head_width}"
                f" features has no native form; known are {', '.join(_ROTATIONS)} of all of them."
            )
        return Rotation(frequencies, float(getattr(rotary, f"{named}attention_scaling")))


def _scaled(product: Product, scale: torch.Tensor) -> Product:
    """A product whose rows are multiplied by `scale`."""
    dense = product.matrix.dense() * scale[:, None]
    matrix = SparseMatrix.from_dense(dense, product.matrix.mask())
    bias = None if product.bias is None else product.bias * scale
    return Product(matrix, bias, product.layers)


def _activation(where: str, layer: nn.Module, path: str) -> str:
    module = attrgetter(path)(layer)
    kind = type(module)
    known = kind.__module__.split(".")[0] in ("torch", "transformers")
    name = _ACTIVATIONS.get(kind.__name__) if known else None
    if name == "gelu" and getattr(module, "approximate", "none") == "tanh":
        name = "gelu_tanh"
    if name is None:
        raise TargetError(
            f"{where}: its activation {kind.__name__} has no native form; known are"
            f" {', '.join(sorted(set(_ACTIVATIONS.values())))}."
        )
    return name


def _norm(where: str, module: nn.Module, norm_first: bool) -> tuple[Norm | None, float]:
    if norm_first and type(module) is nn.Identity:
        return None, 0.0
    if type(module) is not nn.LayerNorm or module.weight is None:
        raise TargetError(f"{where}: expected a LayerNorm with gains, found {module}.")
    shift: torch.Tensor | None = module.bias
    shift = torch.zeros_like(module.weight) if shift is None else shift
    return Norm(_float(where, module.weight), _float(where, shift)), float(module.eps)


def _float(where: str, values: torch.Tensor) -> torch.Tensor:
    if values.dtype is not torch.float32 or values.device.type != "cpu":
        raise TargetError(
            f"{where}: kernels are float32 on the CPU, this is {values.dtype} on {values.device}."
        )
    return values.detach()
