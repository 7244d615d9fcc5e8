# SPDX-License-Identifier: Apache-2.0
"""An encoder whose layers run in one native call, without padding, in the place of the stock one.

Embeddings, pooler and heads are used as they are. Few tokens run through the stock layers: a native
tile is 64 tokens wide whether they are there or not.

`WholeEncoder` takes the place of a module that runs layers and does nothing else, as BERT has it.
Where the model itself runs them, `LayerList` takes the place of its list: the first layer runs all
of them, the others give back what they are given.

Legend: B sequences, T padded tokens, D features.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, KernelError
from gossamer.nn.families import EncoderFacts
from gossamer.nn.layer_weights import shape_of
from gossamer.nn.surgery.carried import Watch
from gossamer.nn.tokens import EncoderOutput
from gossamer.nn.tokens.bert_layers import live_tokens
from gossamer.ops.addresses import direct_address
from gossamer.ops.calls import Handles, call_op, define_op, refuse_onnx
from gossamer.ops.engines.encoder import PackedEncoder
from gossamer.running.choice import Choice, Chooser, CostKey, Rival
from gossamer.running.encoder.layers import EncoderStandIn, blocks_of, facts_of

# Tokens of a sequence that choices are measured with, and from which on one call wins unmeasured: a
# third of a tile.
_SEQUENCE = 128
_RULE_TOKENS = 24


class NativeEncoder(nn.Module):
    """Runs layers in one native call where `choices` say it is faster, one by one elsewhere.

    Attributes:
        packed: the layers for one native call.
        choices: what was measured at which number of tokens, fewest first.
        min_tokens: tokens of a batch from which the native call runs.
    """

    packed: PackedEncoder
    choices: tuple[Choice, ...]
    min_tokens: int
    config: Any

    def _begin(self, stock: nn.Module, packed: PackedEncoder, choices: tuple[Choice, ...]) -> None:
        self.packed = packed
        self._handle = _ENCODERS.add(packed)
        self.choices = choices
        # From where one native call runs: the border to the last number of tokens that lost.
        won = min(choice.tokens for choice in choices if choice.is_sparse)
        lost = [choice.tokens for choice in choices if choice.tokens < won]
        self.min_tokens = math.isqrt(lost[-1] * won - 1) + 1 if lost else min(won, _RULE_TOKENS)
        self._watch = Watch(stock.modules())

    def runs(
        self, hidden_BTD: torch.Tensor, mask: torch.Tensor | None, arguments: dict[str, Any]
    ) -> bool:
        """Whether one native call gives what the layers would."""
        is_seen = torch.compiler.is_compiling()
        # Layers that were hooked after `compile` are called.
        if (
            hidden_BTD.shape[0] * hidden_BTD.shape[1] < self.min_tokens
            or _asks_for_more(arguments, self.config)
            or (not is_seen and self._watch.finds_hooks())
        ):
            return False
        if is_seen or mask is None or not self.packed.knows_positions:
            return True
        return _is_in_one_piece(live_tokens(mask, hidden_BTD))

    def run(self, hidden_BTD: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The last hidden state [B, T, D], zeros where there was padding."""
        if hidden_BTD.requires_grad and torch.is_grad_enabled():
            raise InputError(
                "a compiled encoder is for inference and gives no gradients. Call it under"
                " torch.inference_mode(), or train the model it was compiled from."
            )
        is_direct = not torch.compiler.is_compiling() and direct_address(hidden_BTD)
        if is_direct and (mask is None or direct_address(mask)):
            return _run_padded(self.packed, hidden_BTD, mask)
        refuse_onnx("packed encoder")
        seen = (hidden_BTD, mask, self._handle, *_identity(self.packed))
        done: torch.Tensor = call_op(packed_encoder, "packed encoder", *seen)
        return done

    def extra_repr(self) -> str:
        """What the native call computes in, and from where on."""
        return f"precision={self.packed.precision}, min_tokens={self.min_tokens}"


class WholeEncoder(NativeEncoder, EncoderStandIn):
    """Takes the place of a module that runs layers."""

    def __init__(
        self,
        stock: nn.Module,
        facts: EncoderFacts,
        packed: PackedEncoder,
        choices: tuple[Choice, ...],
    ) -> None:
        EncoderStandIn.__init__(self, stock)
        self._front = facts.front
        self._begin(stock, packed, choices)

    def forward(
        self,
        hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        *,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """The last hidden state [B, T, D], zeros where there was padding."""
        hidden = inputs_embeds if hidden_states is None else hidden_states
        if hidden is None:
            raise InputError("encoder: expected hidden states [B, T, D], got none.")
        if not self.runs(hidden, attention_mask, kwargs):
            return self._stock[0](hidden, attention_mask, **kwargs)
        if self._front:
            hidden = self.get_submodule(self._front)(hidden)
        return EncoderOutput(self.run(hidden, attention_mask))


class LayerList(NativeEncoder, nn.ModuleList):
    """Takes the place of the list of layers that a model runs one after the other."""

    def __init__(
        self,
        stock: nn.Module,
        facts: EncoderFacts,
        packed: PackedEncoder,
        choices: tuple[Choice, ...],
    ) -> None:
        nn.ModuleList.__init__(self, getattr(stock, facts.layers))
        self.config: Any = getattr(stock, "config", None)
        # In a tuple, so that it is no submodule.
        self._rotary = (stock.get_submodule(facts.rotary),) if facts.rotary else ()
        self._turns: dict[str, tuple[torch.Tensor, ...]] = {}
        self._begin(getattr(stock, facts.layers), packed, choices)

    def to_compact(self) -> nn.ModuleList:
        """The list it was made of, with the layers as they are now: what is saved."""
        return nn.ModuleList(self._modules.values())

    def __iter__(self) -> Iterator[Any]:
        if torch.compiler.is_compiling():
            yield from nn.ModuleList.__iter__(self)
            return
        # What one pass of the model through its layers has in common; others may be under way.
        done: list[bool] = []
        for number, layer in enumerate(nn.ModuleList.__iter__(self)):
            yield _Step(self, layer, number == 0, done)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            kept = list(self._modules.values())[index]
            return self if len(kept) == len(self) else nn.ModuleList(kept)
        return nn.ModuleList.__getitem__(self, index)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """What all of the layers give."""
        return self.run(hidden_states, attention_mask)

    def has_usual_positions(self, layer: Any, given: Any, hidden_BTD: torch.Tensor) -> bool:
        """Whether tokens are turned by their places in the sequence, and not by other positions."""
        if not self._rotary or given is None:
            return True
        kind = getattr(layer, "attention_type", "")
        tokens = hidden_BTD.shape[1]
        known = self._turns.get(kind)
        if known is None or known[0].shape[1] < tokens:
            places = torch.arange(tokens)[None]
            names = (kind,) if kind else ()
            known = self._turns[kind] = self._rotary[0](hidden_BTD, places, *names)
        return all(
            len(a) == 1 and torch.equal(a, b[:, :tokens]) for a, b in zip(given, known, strict=True)
        )


class _Step:
    """A layer of a `LayerList` in one pass of the model."""

    def __init__(
        self, layers: LayerList, layer: nn.Module, is_first: bool, done: list[bool]
    ) -> None:
        self._layers, self._layer, self._is_first, self._done = layers, layer, is_first, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> Any:
        if self._is_first:
            usual = self._layers.has_usual_positions(
                self._layer, kwargs.get("position_embeddings"), hidden_states
            )
            if usual and self._layers.runs(hidden_states, attention_mask, kwargs):
                self._done.append(True)
                return self._layers(hidden_states, attention_mask)
        if self._done:
            return hidden_states
        return self._layer(hidden_states, attention_mask, **kwargs)


def _is_in_one_piece(live_BT: torch.Tensor) -> bool:
    """Whether the tokens of every sequence stand one behind the other, padding around them."""
    begins = live_BT[:, 1:] & ~live_BT[:, :-1]
    return bool((begins.sum(dim=1) + live_BT[:, 0] == 1).all())


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
    if packed.knows_positions and not _is_in_one_piece(live_BT):
        raise InputError(
            "encoder: padding stands between the tokens of a sequence, and these layers know"
            " distances. Put it before or behind them, or call the model without torch.compile."
        )
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


def choose_encoder(
    stock: nn.Module, packed: PackedEncoder, counts: Sequence[int], chooser: Chooser
) -> nn.Module:
    """`stock`, or what takes its place if one native call is faster for one of the token counts.

    Where `stock` embeds, too, its list of layers is replaced and it comes back itself.

    Args:
        stock: the encoder, its layers packed one by one.
        packed: the same layers as they were before that.
        counts: tokens of a batch, ascending.
        chooser: decides.
    """
    facts = facts_of(stock)
    choices = tuple(_choice(stock, packed, count, chooser) for count in counts)
    if facts is None or not any(choice.is_sparse for choice in choices):
        return stock
    if not facts.is_model:
        return WholeEncoder(stock, facts, packed, choices)
    setattr(stock, facts.layers, LayerList(stock, facts, packed, choices))
    return stock


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
    choice = chooser.choose_among([rival], lambda: _run_stock(stock, x_BTD))
    why = choice.why.replace("dense is faster", "layer by layer is faster")
    return replace(choice, why=why.replace("x dense", "x layer by layer"))


def _run_stock(stock: nn.Module, x_BTD: torch.Tensor) -> Any:
    """The layers one by one, as their model calls them; without masks."""
    facts = facts_of(stock)
    if facts is None or not facts.is_model:
        front = stock.get_submodule(facts.front) if facts is not None and facts.front else None
        if front is not None:
            x_BTD = x_BTD.new_zeros(*x_BTD.shape[:2], shape_of(front)[1])
        return stock(x_BTD, None)
    arguments: dict[str, dict[str, Any]] = {}
    for _, layer in blocks_of(stock, facts):
        kind = getattr(layer, "attention_type", "")
        if facts.rotary and kind not in arguments:
            places = torch.arange(x_BTD.shape[1])[None]
            turns = stock.get_submodule(facts.rotary)(x_BTD, places, *((kind,) if kind else ()))
            arguments[str(kind)] = {"position_embeddings": turns}
        x_BTD = layer(x_BTD, None, **arguments.get(str(kind), {}))
    return x_BTD


def _asks_for_more(arguments: dict[str, Any], config: Any) -> bool:
    """Whether the caller, or the configuration, wants what only the stock layers compute."""
    outputs = ("output_hidden_states", "output_attentions")
    others = ("encoder_hidden_states", "past_key_values", "is_causal")
    more = [arguments.get(name) for name in (*outputs, *others)]
    by_default = any(getattr(config, name, False) for name in outputs)
    return by_default or any(value is not None and value is not False for value in more)
