# SPDX-License-Identifier: Apache-2.0
"""An encoder whose layers run in one native call, without padding, in the place of the stock one.

Embeddings, pooler and heads are used as they are. Few tokens run through the stock layers: a native
tile is 64 tokens wide whether they are there or not.

Neurons of feed-forward blocks are put in another order where the encoder then runs faster. They may
stand in any order: rows of `up` and columns of `down` move together, and nothing else knows them. A
kernel goes through `down` in blocks of columns and loads and stores a row of sums for every block
in which that row keeps a weight. With neurons sorted by how many weights `down` keeps of them, the
last blocks are nearly empty and most rows skip them. Masks that are even over the neurons have
nothing to gain.

The plain call of a BERT or RoBERTa model around such an encoder goes without its detours:
`model(input_ids, attention_mask)` of transformers builds a mask of all pairs of tokens and asks its
configuration dozens of things, which shows beside a fast encoder. Here it is embeddings, encoder,
pooler. Every other call goes the model's own way.

Legend: B sequences, T padded tokens, N live tokens of all sequences or neurons, D features.
"""

import importlib
import math
import types
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gossamer import settings
from gossamer.errors import InputError, KernelError
from gossamer.formats import SparseMatrix
from gossamer.nn.families import answers
from gossamer.nn.surgery.carried import Watch
from gossamer.nn.tokens import EncoderOutput
from gossamer.nn.tokens.bert_layers import live_tokens
from gossamer.ops.addresses import direct_address
from gossamer.ops.calls import Handles, call_op, define_op, refuse_onnx
from gossamer.ops.engines.encoder import EncoderBlock, PackedEncoder, Product
from gossamer.ops.timing import duel
from gossamer.running.choice import Choice, Chooser, CostKey, Rival
from gossamer.running.encoder.layers import EncoderStandIn, read_layers

# Tokens of a sequence that choices are measured with, and from which on one call wins unmeasured: a
# third of a tile.
_SEQUENCE = 128
_RULE_TOKENS = 24
# Columns of a block of the kernel at low density, see native/src/avx512/encoder.cpp.
_BLOCK = 128
# Another order of neurons is tried where it spares this share of the sums moved.
_MAX_MOVED = 0.95


class NativeEncoder(EncoderStandIn):
    """Runs the layers in one native call where `choices` say it is faster, one by one elsewhere.

    Attributes:
        packed: the same layers for one native call.
        choices: what was measured at which number of tokens, fewest first.
        min_tokens: tokens of a batch from which the native call runs.
    """

    def __init__(
        self, stock: nn.Module, packed: PackedEncoder, choices: tuple[Choice, ...]
    ) -> None:
        super().__init__(stock)
        self.packed = packed
        self._handle = _ENCODERS.add(packed)
        self.choices = choices
        # From where one native call runs: the border to the last number of tokens that lost.
        won = min(choice.tokens for choice in choices if choice.is_sparse)
        lost = [choice.tokens for choice in choices if choice.tokens < won]
        self.min_tokens = math.isqrt(lost[-1] * won - 1) + 1 if lost else min(won, _RULE_TOKENS)
        self._watch = Watch(stock.modules())

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> Any:
        """The last hidden state [B, T, D], zeros where there was padding."""
        batch, tokens = hidden_states.shape[:2]
        few = batch * tokens < self.min_tokens
        is_seen = torch.compiler.is_compiling()
        # Layers that were hooked after `compile` are called.
        if (
            few
            or _asks_for_more(kwargs, self.config)
            or (not is_seen and self._watch.finds_hooks())
        ):
            return self._stock[0](hidden_states, attention_mask, **kwargs)
        if hidden_states.requires_grad and torch.is_grad_enabled():
            raise InputError(
                "a compiled encoder is for inference and gives no gradients. Call it under"
                " torch.inference_mode(), or train the model it was compiled from."
            )
        is_direct = not is_seen and direct_address(hidden_states)
        if is_direct and (attention_mask is None or direct_address(attention_mask)):
            return EncoderOutput(_run_padded(self.packed, hidden_states, attention_mask))
        refuse_onnx("packed encoder")
        seen = (hidden_states, attention_mask, self._handle, *_identity(self.packed))
        return EncoderOutput(call_op(packed_encoder, "packed encoder", *seen))

    def extra_repr(self) -> str:
        """What the native call computes in, and from where on."""
        return f"precision={self.packed.precision}, min_tokens={self.min_tokens}"


def _run_padded(
    packed: PackedEncoder, hidden_BTD: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """What a padded batch gives, zeros where there was padding; only live tokens are computed."""
    batch, tokens, features = hidden_BTD.shape
    rows = hidden_BTD.reshape(batch * tokens, features)
    if mask is None:
        return packed(rows, [tokens] * batch).view_as(hidden_BTD)
    live_BT = live_tokens(mask, hidden_BTD)
    lengths = live_BT.sum(dim=1).tolist()
    if sum(lengths) == batch * tokens:
        return packed(rows, lengths).view_as(hidden_BTD)
    places = live_BT.flatten().nonzero().flatten()
    output = rows.new_zeros(rows.shape)
    output[places] = packed(rows[places], lengths)
    return output.view_as(hidden_BTD)


def _identity(packed: PackedEncoder) -> tuple[int, int, str]:
    """What a graph remembers of the encoder it was made for."""
    return packed.num_layers, packed.features, packed.precision


_ENCODERS: Handles[PackedEncoder] = Handles("packed encoder")


def _fake(hidden_states: torch.Tensor, *_: Any) -> torch.Tensor:
    refuse_onnx("packed encoder")  # strict export comes here first
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


@define_op(
    "packed_encoder", "packed encoder", _fake, advice="Run fewer sequences.", has_gradients=False
)
def packed_encoder(
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None,
    handle: int,
    num_layers: int,
    features: int,
    precision: str,
) -> torch.Tensor:
    """A `NativeEncoder` as an op that torch.compile, export and tracers can see."""
    packed = _ENCODERS.find(handle)
    made_for = (num_layers, features, precision)
    if made_for != _identity(packed):
        raise KernelError(
            f"packed encoder: this graph was made for {made_for}, found {_identity(packed)}. Export"
            " the model again."
        )
    return _run_padded(packed, hidden_states, attention_mask)


def pack_encoder(encoder: nn.Module, precision: str) -> PackedEncoder:
    """The layers of a known encoder for one native call; an error says why it cannot be done.

    Neurons of its feed-forward blocks are reordered if that measures faster.

    Raises:
        TargetError: an encoder that one call does not compute.
        KernelMissing: no kernel packs one of its weights for such a call.
    """
    layers = read_layers(encoder)
    features = layers[0].qkv.matrix.shape[1]
    packed = PackedEncoder(layers, features, precision)
    reordered = reorder_neurons(layers)
    few_enough = reordered.moved_after <= _MAX_MOVED * reordered.moved_before
    if not few_enough or not settings.tuning_enabled():
        return packed
    other = PackedEncoder(reordered.layers, features, precision)
    x_ND = torch.randn(_SEQUENCE, features, generator=torch.Generator().manual_seed(0))
    times = duel(lambda: packed(x_ND, [_SEQUENCE]), lambda: other(x_ND, [_SEQUENCE]))
    return other if times.ratio > 1 else packed


@dataclass(frozen=True)
class Reordered:
    """Layers in their new order, and the rows of sums that `down` moves, before and after."""

    layers: list[EncoderBlock]
    moved_before: int
    moved_after: int


def reorder_neurons(layers: Sequence[EncoderBlock]) -> Reordered:
    """Sort the neurons of every layer by the weights that `down` keeps of them."""
    new, before, after = [], 0, 0
    for layer in layers:
        down_DN = layer.down.matrix.mask()
        order_N = down_DN.sum(dim=0).argsort(descending=True, stable=True)
        before += moved_rows(down_DN)
        after += moved_rows(down_DN[:, order_N])
        up = _in_order(layer.up, order_N, None if layer.up.bias is None else layer.up.bias[order_N])
        down = _in_order(layer.down, (slice(None), order_N), layer.down.bias)
        new.append(replace(layer, up=up, down=down))
    return Reordered(new, before, after)


def moved_rows(mask_DN: torch.Tensor, block: int = _BLOCK) -> int:
    """Rows of sums loaded and stored, once for every block of columns in which a row keeps any."""
    return sum(int(part.any(dim=1).sum()) for part in torch.split(mask_DN, block, dim=1))


def _in_order(linear: Product, index: Any, bias: torch.Tensor | None) -> Product:
    matrix = linear.matrix
    matrix = SparseMatrix.from_dense(matrix.dense()[index], matrix.mask()[index])
    return replace(linear, matrix=matrix, bias=bias)


def choose_encoder(
    stock: nn.Module, packed: PackedEncoder, counts: Sequence[int], chooser: Chooser
) -> nn.Module:
    """`stock`, or a `NativeEncoder` if one native call is faster for one of the token counts.

    Args:
        stock: the encoder, its layers packed one by one.
        packed: the same layers as they were before that.
        counts: tokens of a batch, ascending.
        chooser: decides.
    """
    choices = tuple(_choice(stock, packed, count, chooser) for count in counts)
    if not any(choice.is_sparse for choice in choices):
        return stock
    return NativeEncoder(stock, packed, choices)


def _choice(stock: nn.Module, packed: PackedEncoder, count: int, chooser: Chooser) -> Choice:
    name = "encoder" if packed.precision == "fp32" else f"encoder-{packed.precision}"
    rule = f"fixed rule (GOSSAMER_TUNE=off): {count} tokens, one call from {_RULE_TOKENS} on"
    # Sequences as long as they commonly are: the rest of the tokens are further ones.
    tokens = min(count, _SEQUENCE)
    sequences = -(-count // tokens)
    generator = torch.Generator().manual_seed(0)
    x_BTD = torch.randn(sequences, tokens, packed.features, generator=generator)
    rows = x_BTD.view(-1, packed.features)
    size = f"{packed.nbytes} bytes"
    key = CostKey(name, packed.num_layers, packed.features, size, packed.density, count)
    unmeasured = Choice(count, name if count >= _RULE_TOKENS else "dense", rule)
    rival = Rival(name, key, lambda: packed(rows, [tokens] * sequences), unmeasured)
    choice = chooser.choose_among([rival], lambda: stock(x_BTD, None))
    why = choice.why.replace("dense is faster", "layer by layer is faster")
    return replace(choice, why=why.replace("x dense", "x layer by layer"))


def _asks_for_more(arguments: dict[str, Any], config: Any) -> bool:
    """Whether the caller, or the configuration, wants what only the stock layers compute."""
    outputs = ("output_hidden_states", "output_attentions")
    more = [arguments.get(n) for n in (*outputs, "encoder_hidden_states", "past_key_values")]
    by_default = any(getattr(config, name, False) for name in outputs)
    return by_default or any(value is not None and value is not False for value in more)


_MODELS = {facts.plain_model for facts in answers("encoder").values()}


def short_forward(
    self: Any,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    token_type_ids: torch.Tensor | None = None,
    **others: Any,
) -> Any:
    """What the model gives; bound to it in the place of its own `forward`."""
    config = self.config
    more = {name for name, value in others.items() if value is not None and value is not False}
    is_plain = (
        not torch.compiler.is_compiling()
        and input_ids is not None
        and input_ids.ndim == 2
        and input_ids.numel() >= self.encoder.min_tokens
        and (attention_mask is None or attention_mask.shape == input_ids.shape)
        and more <= {"return_dict"}
        and others.get("return_dict") is not False
        and not (config.output_hidden_states or config.output_attentions)
        and config.return_dict
    )
    if not is_plain:
        return type(self).forward(self, input_ids, attention_mask, token_type_ids, **others)
    embedded_BTD = self.embeddings(input_ids=input_ids, token_type_ids=token_type_ids)
    hidden_BTD = self.encoder(embedded_BTD, attention_mask).last_hidden_state
    pooled_BD = None if self.pooler is None else self.pooler(hidden_BTD)
    outputs = importlib.import_module("transformers.modeling_outputs")
    return outputs.BaseModelOutputWithPoolingAndCrossAttentions(
        last_hidden_state=hidden_BTD, pooler_output=pooled_BD
    )


def shorten_forward(model: nn.Module) -> None:
    """Give every model around a native encoder its short way."""
    for module in model.modules():
        kind = type(module)
        known = f"{kind.__module__}.{kind.__name__}" in _MODELS
        own = "forward" in module.__dict__ or kind.forward.__module__ != kind.__module__
        if known and not own and isinstance(getattr(module, "encoder", None), NativeEncoder):
            # A bound method: a copy of the model gets one of its own.
            module.forward = types.MethodType(short_forward, module)
