# SPDX-License-Identifier: Apache-2.0
"""Learned token pruning (LTP): a threshold per layer on the attention a token receives.

A token whose importance stays below the threshold of a layer is dropped after that layer's
attention: its feed-forward part and all later layers do without it. `TokenPrunedEncoder` takes the
place of a BERT encoder and computes with masks, for training and as the reference;
`run.ragged` computes the same on the tokens that are left.

Legend: B batch, T tokens, D width, L layers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import torch
from torch import nn
from torch.nn.functional import logsigmoid

from gossamer.errors import InputError, TargetError
from gossamer.nn.attention import refuse_patterns
from gossamer.nn.surgery import replace_module
from gossamer.nn.tokens.bert_layers import (
    attend,
    check_uncalled,
    find_encoder,
    first_tokens,
    fixed_divisor,
    live_tokens,
)

Phase = Literal["off", "soft", "hard"]
# What the attention a token receives is divided by: the number of live tokens, the padded length
# (the authors' code), or nothing. Undivided, the average token has 1 whatever the length; divided
# by the live length, a threshold drops more of a long sequence than of a short one.
Normalise = Literal["live", "padded", "received"]
Dropped = Literal["zero", "last"]
Soft = Literal["weighted", "published"]

# Smaller weights change nothing in float32, but products with them are denormal numbers, which make
# a step several times slower.
_LEAST_LOG_WEIGHT = -30.0


@dataclass(frozen=True)
class TokenTrace:
    """What one call of an encoder kept.

    Attributes:
        real: bool [B, T], tokens that are no padding.
        keep: per layer [B, T], what is left after it: bool, or weights between 0 and 1 (soft).
        importance: per layer [B, T], what thresholds are compared with; without gradient.
    """

    real: torch.Tensor
    keep: list[torch.Tensor] = field(default_factory=list)
    importance: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class EncoderOutput:
    """What a model reads from its encoder, by name or by number."""

    last_hidden_state: torch.Tensor
    past_key_values: None = None
    hidden_states: None = None
    attentions: None = None

    def __getitem__(self, index: Any) -> Any:
        return getattr(self, index) if isinstance(index, str) else (self.last_hidden_state,)[index]


class TokenPrunedEncoder(nn.Module):
    """A BERT encoder with one learned threshold per layer.

    Attributes:
        layer: the layers of the encoder whose place it takes, under their old names.
        thresholds: one per layer, the Parameter that is learned.
        phase: "off" keeps every token. "soft" weighs tokens by sigmoid((importance - threshold) /
            temperature), so that thresholds have gradients. "hard" drops them.
        temperature: of the soft phase; as it goes to 0, soft becomes hard.
        soft: "weighted" carries the weight of a token on: it counts less as key, as query and in
            the result, and the limit is exactly the hard phase. "published" is what the authors'
            code does: the output of each layer is multiplied, attention is unchanged.
    """

    def __init__(
        self,
        layers: nn.ModuleList,
        thresholds: torch.Tensor,
        *,
        normalise: Normalise = "live",
        dropped: Dropped = "zero",
        soft: Soft = "weighted",
    ) -> None:
        super().__init__()
        self.layer = layers
        self.thresholds = nn.Parameter(thresholds)
        for name, value, choices in (
            ("normalise", normalise, get_args(Normalise)),
            ("dropped", dropped, get_args(Dropped)),
            ("soft", soft, get_args(Soft)),
        ):
            if value not in choices:
                raise InputError(f"{name}: expected one of {', '.join(choices)}, got {value!r}.")
        # In the state dict: thresholds learned under one rule mean nothing under another.
        codes = [get_args(Normalise).index(normalise), get_args(Dropped).index(dropped)]
        self.register_buffer("rules", torch.tensor(codes, dtype=torch.uint8))
        self.soft: Soft = soft
        self.phase: Phase = "hard"
        self.temperature = 1e-3
        # The stock encoder's configuration, where other code looks for it.
        self.config: Any = None
        self._traces: list[TokenTrace] | None = None

    @property
    def normalise(self) -> Normalise:
        """What importance is divided by."""
        return cast(Normalise, self._rule(0))

    @property
    def dropped(self) -> Dropped:
        """What the result holds for a dropped token: zeros, or its state when it was dropped."""
        return cast(Dropped, self._rule(1))

    def _rule(self, which: int) -> Any:
        choices = get_args((Normalise, Dropped)[which])
        code = int(self.get_buffer("rules")[which])
        if code >= len(choices):
            raise InputError(
                f"rules[{which}]: expected a number below {len(choices)}, found {code}. The state"
                " dict is damaged or from a newer version."
            )
        return choices[code]

    @contextmanager
    def recording(self) -> Iterator[list[TokenTrace]]:
        """Collects a trace of every call inside the `with` block."""
        outer, self._traces = self._traces, []
        try:
            yield self._traces
        finally:
            self._traces = outer

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> EncoderOutput:
        """The last hidden state [B, T, D]; see `dropped` for tokens that are gone."""
        trace = TokenTrace(live_tokens(attention_mask, hidden_states))
        run = self._soft if self.phase == "soft" else self._hard
        output_BTD = run(hidden_states, trace)
        if self._traces is not None:
            self._traces.append(trace)
        return EncoderOutput(output_BTD)

    def _hard(self, x_BTD: torch.Tensor, trace: TokenTrace) -> torch.Tensor:
        first_BT, live_BT = first_tokens(trace.real), trace.real
        last_BTD = torch.zeros_like(x_BTD)
        for layer, threshold in zip(self.layer, self.thresholds, strict=True):
            between, importance_BT = self._attention(layer, x_BTD, live_BT, None)
            if self.phase == "hard":
                stays_BT = live_BT & (first_BT | (importance_BT >= threshold))
                gone_BT1 = (live_BT & ~stays_BT).unsqueeze(-1)
                if self.dropped == "last":
                    last_BTD = torch.where(gone_BT1, between, last_BTD)
                live_BT = stays_BT
            x_BTD = _feed_forward(layer, between)
            trace.keep.append(live_BT)
            trace.importance.append(importance_BT.detach())
        # Padding is left as the layers made it where nothing is dropped, as in a stock encoder.
        if self.phase == "hard":
            x_BTD = torch.where(live_BT.unsqueeze(-1), x_BTD, last_BTD)
        return x_BTD

    def _soft(self, x_BTD: torch.Tensor, trace: TokenTrace) -> torch.Tensor:
        if self.temperature <= 0:
            raise InputError(f"temperature: must be above 0, got {self.temperature}.")
        real_BT = trace.real
        first_BT = first_tokens(real_BT)
        log_BT = torch.zeros_like(x_BTD[..., 0])
        weight_BT = real_BT.to(x_BTD.dtype)
        gone_BTD = torch.zeros_like(x_BTD)
        for layer, threshold in zip(self.layer, self.thresholds, strict=True):
            carried = log_BT if self.soft == "weighted" else None
            between, importance_BT = self._attention(layer, x_BTD, real_BT, carried)
            step_BT = logsigmoid((importance_BT - threshold) / self.temperature)
            step_BT = step_BT.masked_fill(first_BT, 0.0)
            before_BT, x_BTD = weight_BT, _feed_forward(layer, between)
            log_BT = log_BT + step_BT if self.soft == "weighted" else step_BT
            log_BT = log_BT.clamp(min=_LEAST_LOG_WEIGHT)
            weight_BT = log_BT.exp() * real_BT
            trace.keep.append(weight_BT)
            trace.importance.append(importance_BT.detach())
            if self.soft == "published":
                x_BTD = x_BTD * weight_BT.unsqueeze(-1)
            elif self.dropped == "last":
                gone_BTD = gone_BTD + (before_BT - weight_BT).unsqueeze(-1) * between
        if self.soft == "weighted":
            x_BTD = x_BTD * weight_BT.unsqueeze(-1) + gone_BTD
        return x_BTD

    def _attention(
        self,
        layer: Any,
        x_BTD: torch.Tensor,
        live_BT: torch.Tensor,
        log_weight_BT: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """State between attention and feed-forward part, and the importance of every token."""
        length = fixed_divisor(self.normalise, x_BTD.shape[1])
        mixed, importance_BT = attend(layer.attention.self, x_BTD, live_BT, log_weight_BT, length)
        return layer.attention.output(mixed, x_BTD), importance_BT


def _feed_forward(layer: Any, between: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = layer.output(layer.intermediate(between), between)
    return result


def add_token_pruning(
    model: nn.Module,
    final_threshold: float = 0.01,
    *,
    normalise: Normalise = "live",
    dropped: Dropped = "zero",
    soft: Soft = "weighted",
) -> TokenPrunedEncoder:
    """Put a `TokenPrunedEncoder` in the place of the model's BERT encoder, in phase "hard".

    Thresholds start linear in depth, `final_threshold` in the last layer. Names of all weights
    stay; `thresholds` and `rules` are new beside them.
    """
    if not 0 <= final_threshold <= 1:
        raise InputError(f"final_threshold: must be between 0 and 1, got {final_threshold}.")
    old = find_encoder(model)
    if isinstance(old, TokenPrunedEncoder):
        raise TargetError("the model has token pruning already: set its thresholds instead.")
    layers: Any = old.layer
    check_uncalled(old)
    refuse_patterns(old, "token pruning looks at the weights of all pairs")
    like = next(layers.parameters())
    depth = torch.arange(1, len(layers) + 1, device=like.device, dtype=like.dtype)
    new = TokenPrunedEncoder(
        layers,
        final_threshold * depth / len(layers),
        normalise=normalise,
        dropped=dropped,
        soft=soft,
    )
    new.config = getattr(old, "config", None)
    new.training = old.training
    replace_module(model, old, new)
    return new


def token_encoder(model: nn.Module) -> TokenPrunedEncoder:
    """The one encoder of `model` that prunes tokens."""
    found = find_encoder(model)
    if not isinstance(found, TokenPrunedEncoder):
        raise TargetError("the model has no token pruning: call add_token_pruning(model) first.")
    return found
