# SPDX-License-Identifier: Apache-2.0
"""Linformer: keys and values of a sequence are projected to a few, and all attend to those."""

import math

import torch
from torch import Tensor, nn

from gossamer.errors import InputError
from gossamer.ops.attention import attention

_WHERE = "LinformerAttention"


class LinformerAttention(nn.Module):
    """`softmax(Q (E K)^T / sqrt(d)) (F V)` with E and F of [k, n] (arXiv 2006.04768).

    Args:
        embed_dim: features of a token.
        num_heads: divides embed_dim.
        length: n, the longest sequence; shorter ones use the first columns of E and F.
        projected: k, how many keys and values are left.
        shared: E and F are one matrix, as in the paper's key-value sharing; else two. Heads share
            them in both cases.
        bias: of the projections of queries, keys, values and results.
        causal: refused, as every projected key mixes all tokens.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        length: int,
        projected: int = 256,
        *,
        shared: bool = False,
        bias: bool = True,
        causal: bool = False,
    ) -> None:
        super().__init__()
        if causal:
            raise InputError(
                f"{_WHERE}: cannot be causal, because a projected key mixes all tokens, later ones"
                " included. Use SparseAttention with a window, or LSHAttention."
            )
        if num_heads < 1 or embed_dim % num_heads:
            raise InputError(f"{_WHERE}: {num_heads} heads do not divide {embed_dim} features.")
        if not 1 <= projected <= length:
            raise InputError(f"{_WHERE}: projected must be 1 to length {length}, got {projected}.")
        self.embed_dim, self.num_heads, self.length = embed_dim, num_heads, length
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key_proj = nn.Parameter(torch.randn(projected, length) / math.sqrt(projected))
        self.value_proj: nn.Parameter | None = None
        if not shared:
            self.value_proj = nn.Parameter(torch.randn(projected, length) / math.sqrt(projected))

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, n, embed_dim] of the same shape; n is at most `length`."""
        tokens = x.shape[1]
        if tokens > self.length:
            raise InputError(
                f"{_WHERE}: {tokens} tokens, but the projections are for {self.length}. Make the"
                " layer for longer sequences, or cut them."
            )
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        of_values = self.key_proj if self.value_proj is None else self.value_proj
        k, v = self.key_proj[:, :tokens] @ k, of_values[:, :tokens] @ v
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        out = attention(q, k, v)
        merged: Tensor = self.out_proj(out.transpose(1, 2).flatten(2))
        return merged

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"heads={self.num_heads}, length={self.length}, projected={len(self.key_proj)}"
