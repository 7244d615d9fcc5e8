# SPDX-License-Identifier: Apache-2.0
"""An encoder whose layers run in one native call, without padding, in the place of the stock one.

Embeddings, pooler and heads are used as they are. Few tokens run through the stock layers: a native
tile is 64 tokens wide whether they are there or not.

Legend: B sequences, T padded tokens, N live tokens of all sequences, D features.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gossamer import settings
from gossamer.errors import InputError, KernelError
from gossamer.nn.surgery.carried import Watch
from gossamer.nn.tokens.bert_layers import live_tokens
from gossamer.nn.tokens.token_pruning import EncoderOutput
from gossamer.ops.addresses import direct_address
from gossamer.ops.calls import Handles, call_op, define_op, refuse_onnx
from gossamer.ops.engines import PackedEncoder
from gossamer.ops.timing import duel
from gossamer.running.choice import Choice, Chooser, CostKey, Rival
from gossamer.running.encoder.layers import read_layers
from gossamer.running.encoder.reorder import reorder_neurons
from gossamer.running.encoder.stand_in import EncoderStandIn

# Tokens of a sequence that choices are measured with, and from which on one call wins unmeasured: a
# third of a tile.
_SEQUENCE = 128
_RULE_TOKENS = 24
# Another order of neurons is tried where it spares this share of the sums moved.
_MAX_MOVED = 0.95


class NativeEncoder(EncoderStandIn):
    """Runs the layers in one native call where `choices` say it is faster, one by one elsewhere.

    Attributes:
        packed: the same layers for one native call.
        choices: what was measured at which number of tokens.
        min_tokens: tokens of a batch from which the native call runs.
    """

    def __init__(
        self, stock: nn.Module, packed: PackedEncoder, choices: tuple[Choice, ...]
    ) -> None:
        super().__init__(stock)
        self.packed = packed
        self._handle = _ENCODERS.add(packed)
        self.choices = tuple(sorted(choices, key=lambda choice: choice.tokens))
        self.min_tokens = _first_win(self.choices)
        self._watch = Watch(stock.modules())

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """The last hidden state [B, T, D], zeros where there was padding."""
        batch, tokens = hidden_states.shape[:2]
        few = batch * tokens < self.min_tokens
        if few or _asks_for_more(kwargs, self.config) or self._is_hooked():
            return self._stock[0](hidden_states, attention_mask, **kwargs)
        if hidden_states.requires_grad and torch.is_grad_enabled():
            raise InputError(
                "a compiled encoder is for inference and gives no gradients. Call it under"
                " torch.inference_mode(), or train the model it was compiled from."
            )
        is_direct = not torch.compiler.is_compiling() and direct_address(hidden_states)
        if is_direct and (attention_mask is None or direct_address(attention_mask)):
            return EncoderOutput(_run_padded(self.packed, hidden_states, attention_mask))
        refuse_onnx("packed encoder")
        seen = (hidden_states, attention_mask, self._handle, *_identity(self.packed))
        return EncoderOutput(call_op(packed_encoder, "packed encoder", *seen))

    def _is_hooked(self) -> bool:
        """Whether layers were hooked after `compile`: then they are called."""
        return not torch.compiler.is_compiling() and self._watch.finds_hooks()

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
    "packed_encoder",
    "packed encoder",
    _fake,
    advice="Run fewer sequences.",
    has_gradients=False,
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
    """The layers of a known encoder for one native call; TargetError if it cannot be done.

    Neurons of its feed-forward blocks are reordered if that measures faster.
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


def choose_encoder(
    stock: nn.Module, packed: PackedEncoder, counts: Sequence[int], chooser: Chooser
) -> nn.Module:
    """`stock`, or a `NativeEncoder` if one native call is faster for one of the token counts.

    Args:
        stock: the encoder, its layers packed one by one.
        packed: the same layers as they were before that.
        counts: tokens of a batch.
        chooser: decides.
    """
    choices = tuple(_choice(stock, packed, count, chooser) for count in counts)
    if not any(choice.is_sparse for choice in choices):
        return stock
    return NativeEncoder(stock, packed, choices)


def _choice(stock: nn.Module, packed: PackedEncoder, count: int, chooser: Chooser) -> Choice:
    name = "encoder" if packed.precision == "fp32" else f"encoder-{packed.precision}"
    rule = f"fixed rule (GOSSAMER_TUNE=off): {count} tokens, one call from {_RULE_TOKENS} on"
    kernel = name if count >= _RULE_TOKENS else "dense"
    # Sequences as long as they commonly are: the rest of the tokens are further ones.
    tokens = min(count, _SEQUENCE)
    sequences = -(-count // tokens)
    generator = torch.Generator().manual_seed(0)
    x_BTD = torch.randn(sequences, tokens, packed.features, generator=generator)
    rows = x_BTD.view(-1, packed.features)
    key = CostKey(
        kernel=name,
        rows=packed.num_layers,
        columns=packed.features,
        pattern=f"{packed.nbytes} bytes",
        density=packed.density,
        tokens=count,
        threads=torch.get_num_threads(),
    )
    unmeasured = Choice(count, kernel, None, None, rule)
    rival = Rival(name, key, lambda: packed(rows, [tokens] * sequences), unmeasured)
    choice = chooser.choose_among([rival], lambda: stock(x_BTD, None))
    why = choice.why.replace("dense is faster", "layer by layer is faster")
    return replace(choice, why=why.replace("x dense", "x layer by layer"))


def _first_win(choices: tuple[Choice, ...]) -> int:
    """Tokens from which one native call runs: the border to the last count that lost."""
    lost = [choice.tokens for choice in choices if not choice.is_sparse]
    won = min(choice.tokens for choice in choices if choice.is_sparse)
    below = [tokens for tokens in lost if tokens < won]
    return math.isqrt(max(below) * won - 1) + 1 if below else min(won, _RULE_TOKENS)


def _asks_for_more(arguments: dict[str, Any], config: Any) -> bool:
    """Whether the caller, or the configuration, wants what only the stock layers compute."""
    if any(getattr(config, f"output_{what}", False) for what in ("hidden_states", "attentions")):
        return True
    wanted = ("encoder_hidden_states", "past_key_values", "output_attentions")
    more = any(arguments.get(name) is not None and arguments[name] is not False for name in wanted)
    return more or bool(arguments.get("output_hidden_states"))
