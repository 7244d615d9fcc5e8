# SPDX-License-Identifier: Apache-2.0
"""A BERT encoder on packed tokens: no padding is computed, and dropped tokens are really gone.

It takes the place of the encoder inside its model, so that embeddings, pooler and heads are used as
they are, and pruned or compiled layers too. Linear layers and norms run on one matrix of all live
tokens; attention runs on sequences of equal length together. Rows are gathered whenever a token is
dropped, not only above a share of them: that takes 0.17 ms beside 14 ms for the products of a layer
(555 tokens of MiniLM), so it pays from two tokens in a hundred on.

Sequences stand in the order of their length, so that those of equal length are one contiguous view
[sequences, tokens, width] and attention needs no index, no padding and no mask. Dropping tokens
gathers rows anyway, and the same gather puts the sequences in their new order for nothing.

Legend: N rows (live tokens of all sequences), B sequences, T padded tokens, D width, H heads,
E width of a head.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from gossamer.errors import InputError, TargetError
from gossamer.nn.surgery import replace_module
from gossamer.nn.tokens import EncoderOutput, Normalise, TokenPrunedEncoder
from gossamer.nn.tokens.bert_layers import (
    check_uncalled,
    find_encoder,
    fixed_divisor,
    heads_of,
    live_tokens,
)
from gossamer.running.encoder.layers import EncoderStandIn

# Attention chances held at once, in numbers; 4 MiB of float32 stay in most caches of level 2 and 3.
_MAX_CHANCES = 1 << 20


@dataclass(frozen=True)
class EqualLengths:
    """Sequences of equal length: rows `start` to `start + sequences * tokens`."""

    start: int
    sequences: int
    tokens: int

    @property
    def rows(self) -> slice:
        """Where its tokens are."""
        return slice(self.start, self.start + self.sequences * self.tokens)


@dataclass(frozen=True)
class RaggedBatch:
    """Which token every row is.

    Attributes:
        places: [N], its place in the padded batch, sequence x T + position.
        lengths: [B], lengths of the sequences in their present order, ascending.
    """

    places: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, live_BT: torch.Tensor) -> "RaggedBatch":
        """The tokens where `live_BT` is True."""
        place_N = live_BT.flatten().nonzero().flatten()
        return cls(place_N, live_BT.sum(dim=1)).keep(torch.ones_like(place_N, dtype=torch.bool))[0]

    def groups(self) -> Iterator[EqualLengths]:
        """Sequences of equal length, shortest first; together all rows."""
        start = 0
        for tokens, members in groupby(self.lengths.tolist()):
            sequences = len(list(members))
            yield EqualLengths(start, sequences, tokens)
            start += sequences * tokens

    def keep(self, kept_N: torch.Tensor) -> tuple["RaggedBatch", torch.Tensor]:
        """The batch of the rows where `kept_N` is True, and which row each of its rows was."""
        count, index_N = len(self.lengths), kept_N.nonzero().flatten()
        if count == 1:
            lengths_B = self.lengths.new_full((1,), len(index_N))
        else:
            numbers_B = torch.arange(count, device=kept_N.device)
            sequence_N = numbers_B.repeat_interleave(self.lengths)[index_N]
            lengths_B, order_B = torch.bincount(sequence_N, minlength=count).sort(stable=True)
            rank_B = torch.empty_like(order_B)
            rank_B[order_B] = numbers_B
            index_N = index_N[rank_B[sequence_N].argsort(stable=True)]
        return RaggedBatch(self.places[index_N], lengths_B), index_N


class RaggedEncoder(EncoderStandIn):
    """Runs the layers of an encoder on packed tokens; for inference.

    Attributes:
        thresholds: of token pruning; a layer whose threshold is 0 drops nothing and does not
            compute importance.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder)
        self.layer: Any
        self.thresholds = [0.0] * len(self.layer)
        self.normalise: Normalise = "live"
        self.keeps_last = False
        if isinstance(encoder, TokenPrunedEncoder) and encoder.phase != "off":
            self.thresholds = encoder.thresholds.detach().tolist()
            self.normalise, self.keeps_last = encoder.normalise, encoder.dropped == "last"
        self.training = encoder.training

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> EncoderOutput:
        """The last hidden state [B, T, D], zeros where there was padding."""
        if self.training:
            raise InputError(
                "a packed encoder has no dropout: call model.eval(), or train before run_packed."
            )
        batch = RaggedBatch.of(live_tokens(attention_mask, hidden_states))
        divisor = fixed_divisor(self.normalise, hidden_states.shape[1])
        rows_PD = hidden_states.reshape(-1, hidden_states.shape[-1])
        output_PD = torch.zeros_like(rows_PD)
        x_ND = rows_PD[batch.places]
        for layer, threshold in zip(self.layer, self.thresholds, strict=True):
            mixed, importance_N = _attention(
                layer.attention.self, x_ND, batch, divisor, threshold > 0
            )
            x_ND = layer.attention.output(mixed, x_ND)
            if importance_N is not None:
                kept_N = importance_N >= threshold
                if self.keeps_last:
                    output_PD[batch.places[~kept_N]] = x_ND[~kept_N]
                if not bool(kept_N.all()):
                    batch, index_N = batch.keep(kept_N)
                    x_ND = x_ND[index_N]
            x_ND = layer.output(layer.intermediate(x_ND), x_ND)
        output_PD[batch.places] = x_ND
        return EncoderOutput(output_PD.view_as(hidden_states))


def run_packed(model: nn.Module) -> RaggedEncoder:
    """Put a `RaggedEncoder` in the place of the model's BERT encoder; the model gives the same.

    With token pruning the thresholds as they are now are applied hard. Without it all tokens are
    kept, and what is saved is padding.
    """
    old = find_encoder(model)
    if isinstance(old, RaggedEncoder):
        raise TargetError("the model runs packed already.")
    check_uncalled(old)
    new = RaggedEncoder(old)
    replace_module(model, old, new)
    return new


def _attention(
    attention: Any, x_ND: torch.Tensor, batch: RaggedBatch, divisor: int | None, scored: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Mixed heads [N, H E], and the importance of every row if it is asked for.

    The first token of a sequence gets infinite importance: it is never dropped.
    """
    query, key, value = heads_of(attention, x_ND.unsqueeze(0))
    width = query.shape[-1]
    mixed_NHE = x_ND.new_empty(len(x_ND), query.shape[1], width)
    importance_N = x_ND.new_empty(len(x_ND)) if scored else None
    for group in _bounded(batch, query.shape[1]):
        shape = (group.sequences, group.tokens)
        q, k, v = (
            part[0, :, group.rows].view(-1, *shape, width).transpose(0, 1)
            for part in (query, key, value)
        )
        if importance_N is None:
            mixed = scaled_dot_product_attention(q, k, v, scale=attention.scaling)
        else:
            chances = (q @ k.transpose(-1, -2) * attention.scaling).softmax(dim=-1)
            mixed = chances @ v
            received = chances.sum(dim=(1, 2)) / (chances.shape[1] * (divisor or group.tokens))
            received[:, 0] = torch.inf
            importance_N[group.rows] = received.flatten()
        mixed_NHE[group.rows].view(*shape, -1, width).copy_(mixed.transpose(1, 2))
    return mixed_NHE.flatten(1), importance_N


def _bounded(batch: RaggedBatch, heads: int) -> Iterator[EqualLengths]:
    """The groups of a batch, cut so that few attention chances exist at once."""
    for group in batch.groups():
        size = max(1, _MAX_CHANCES // max(1, heads * group.tokens**2))
        for done in range(0, group.sequences, size):
            count = min(size, group.sequences - done)
            yield EqualLengths(group.start + done * group.tokens, count, group.tokens)
