# SPDX-License-Identifier: Apache-2.0
"""An encoder whose layers run in one native call, without padding, in the place of the stock one.

Embeddings, pooler and heads are used as they are. Few tokens run through the stock layers: a native
tile is 64 tokens wide whether they are there or not.

Legend: B sequences, T padded tokens, N live tokens of all sequences, D features.
"""

from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.token_attention import live_tokens
from gossamer.nn.token_pruning import EncoderOutput
from gossamer.ops.encoder import PackedEncoder


class NativeEncoder(nn.Module):
    """Runs `packed` where a batch has at least `min_tokens` tokens, `stock` below.

    Attributes:
        stock: the encoder whose place it takes, its layers packed one by one.
        packed: the same layers for one native call.
        min_tokens: tokens of a batch, padding not counted, from which `packed` is faster.
    """

    def __init__(self, stock: nn.Module, packed: PackedEncoder, min_tokens: int) -> None:
        super().__init__()
        self.stock = stock
        self.packed = packed
        self.min_tokens = min_tokens
        self.config: Any = getattr(stock, "config", None)

    @property
    def layer(self) -> Any:
        """The stock layers, where other code looks for them."""
        return self.stock.layer

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """The last hidden state [B, T, D], zeros where there was padding."""
        if _asks_for_more(kwargs) or hidden_states.numel() < self.min_tokens * self.packed.features:
            return self.stock(hidden_states, attention_mask, **kwargs)
        if hidden_states.requires_grad and torch.is_grad_enabled():
            raise InputError(
                "a compiled encoder is for inference and gives no gradients. Call it under"
                " torch.inference_mode(), or train the model it was compiled from."
            )
        batch, tokens, features = hidden_states.shape
        rows = hidden_states.reshape(batch * tokens, features)
        if attention_mask is None:
            output = self.packed(rows, [tokens] * batch)
            return EncoderOutput(output.view(batch, tokens, features))
        live_BT = live_tokens(attention_mask, hidden_states)
        lengths = live_BT.sum(dim=1).tolist()
        if sum(lengths) == batch * tokens:
            output = self.packed(rows, lengths)
            return EncoderOutput(output.view(batch, tokens, features))
        places = live_BT.flatten().nonzero().flatten()
        output = rows.new_zeros(rows.shape)
        output[places] = self.packed(rows[places], lengths)
        return EncoderOutput(output.view(batch, tokens, features))


def _asks_for_more(arguments: dict[str, Any]) -> bool:
    """Whether the caller wants what only the stock layers compute."""
    wanted = ("encoder_hidden_states", "past_key_values", "output_attentions")
    more = any(arguments.get(name) is not None and arguments[name] is not False for name in wanted)
    return more or bool(arguments.get("output_hidden_states"))
