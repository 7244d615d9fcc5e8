# SPDX-License-Identifier: Apache-2.0
"""A small transformer encoder in plain modules: every projection is its own Linear.

Legend: B batch, T tokens, D width, H heads, C classes.
"""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from gossamer.zoo.arguments import TokenModel


class EncoderLayer(nn.Module):
    """Pre-norm self-attention and feed-forward, each with a residual connection."""

    def __init__(self, width: int, num_heads: int, ffn_width: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = width // num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.ffn_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, ffn_width)
        self.activation = nn.GELU()
        self.down = nn.Linear(ffn_width, width)

    def forward(self, x_BTD: torch.Tensor, keep_BT: torch.Tensor | None = None) -> torch.Tensor:
        """The tokens [B, T, D] after one layer; `keep_BT` is False where a token is padding."""
        normed_BTD = self.attention_norm(x_BTD)
        query, key, value = (
            project(normed_BTD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        allowed = None if keep_BT is None else keep_BT[:, None, None, :]
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        x_BTD = x_BTD + self.output(mixed.transpose(1, 2).flatten(-2))
        result: torch.Tensor = x_BTD + self.down(self.activation(self.up(self.ffn_norm(x_BTD))))
        return result


class MeanPool(nn.Module):
    """The mean of the tokens of each text."""

    def forward(self, x_BTD: torch.Tensor, keep_BT: torch.Tensor | None = None) -> torch.Tensor:
        """[B, D]; `keep_BT` is False where a token is padding."""
        if keep_BT is None:
            return x_BTD.mean(dim=1)
        weight_BT1 = keep_BT.unsqueeze(-1).to(x_BTD.dtype)
        return (x_BTD * weight_BT1).sum(dim=1) / weight_BT1.sum(dim=1).clamp(min=1)


class TinyEncoder(TokenModel):
    """Token and position embeddings, encoder layers, mean pooling and a classifier `head`.

    With `num_classes=0` there is no head and the pooled embedding [B, D] is returned.
    """

    limit = "max_tokens"
    num_classes: int
    max_tokens: int

    def __init__(
        self,
        vocab_size: int,
        num_classes: int,
        *,
        width: int = 64,
        num_heads: int = 4,
        num_layers: int = 2,
        ffn_width: int = 256,
        max_tokens: int = 128,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            num_classes=num_classes,
            width=width,
            num_heads=num_heads,
            num_layers=num_layers,
            ffn_width=ffn_width,
            max_tokens=max_tokens,
        )
        self.layers = nn.ModuleList(
            EncoderLayer(width, num_heads, ffn_width) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.pool = MeanPool()
        self.head = nn.Linear(width, num_classes) if num_classes else nn.Identity()

    def forward(self, ids_BT: torch.Tensor, keep_BT: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [B, C], or the pooled embedding [B, D] without classes.

        Args:
            ids_BT: int64 token ids; hidden states [B, T, D] in their place are taken as embedded
                already, which is what a stage of a pipeline is given.
            keep_BT: bool, False where a token is padding; None if there is no padding.
        """
        x_BTD = self.embed(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, keep_BT)
        result: torch.Tensor = self.head(self.pool(self.norm(x_BTD), keep_BT))
        return result
