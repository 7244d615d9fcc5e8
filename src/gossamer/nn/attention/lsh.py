# SPDX-License-Identifier: Apache-2.0
"""Reformer's attention: tokens are sorted by a hash, and attend within chunks of that order.

Queries and keys share a projection, keys are normalised. A round hashes by a random rotation,
`argmax([xR; -xR])`, sorts by bucket and position, and lets every token attend to its chunk and the
one before; to itself only if there is nobody else. Rounds are combined by their sums of
exponentials.

Legend: B batch, H heads, N tokens, D features of a head, T rounds.
"""

import math

import torch
from torch import Tensor, nn

from gossamer.errors import InputError
from gossamer.ops.attention import attention

_WHERE = "LSHAttention"
# As published: so low that it counts for nothing beside any other score.
_ITSELF = -1e5


class LSHAttention(nn.Module):
    """Shared-QK attention by locality-sensitive hashing (arXiv 2001.04451).

    Args:
        embed_dim: features of a token.
        num_heads: divides embed_dim.
        chunk: tokens of a chunk, and on average of a bucket.
        rounds: of hashing; more come closer to full attention.
        causal: tokens attend up to their own position only.
        bias: of the projections.
        seed: of the rotations; None draws new ones from torch's generator in each call.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        chunk: int = 64,
        rounds: int = 4,
        causal: bool = False,
        bias: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise InputError(f"{_WHERE}: {num_heads} heads do not divide {embed_dim} features.")
        if chunk < 1 or rounds < 1:
            raise InputError(f"{_WHERE}: chunk and rounds must be at least 1.")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.chunk, self.rounds, self.causal, self.seed = chunk, rounds, causal, seed
        self.qk_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Features [B, N, embed_dim] of the same shape."""
        q, v = (
            proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for proj in (self.qk_proj, self.v_proj)
        )
        merged: Tensor = self.out_proj(self._attend(q, v).transpose(1, 2).flatten(2))
        return merged

    def _attend(self, q: Tensor, v: Tensor) -> Tensor:
        batch, heads, tokens, dim = q.shape
        order = torch.argsort(self.buckets(q), dim=-1, stable=True)  # [B, H, T, N]
        # Rounds are sequences of the batch: one call for all of them.
        sorted_q = _by_rounds(_rows(q[:, :, None], order))
        sorted_v = _by_rounds(_rows(v[:, :, None], order))
        sorted_k = sorted_q / sorted_q.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        itself = torch.zeros(heads, max(2 * tokens - 1, 0), device=q.device)
        if tokens:
            itself[:, tokens - 1] = _ITSELF
        out, lse = attention(
            sorted_q,
            sorted_k,
            sorted_v,
            f"chunks:{self.chunk}",
            scale=1.0 / math.sqrt(dim),
            bias=itself,
            positions=_by_rounds(order[..., None])[..., 0] if self.causal else None,
            return_lse=True,
        )
        back = torch.argsort(order, dim=-1)
        shape = batch, self.rounds, heads, tokens
        out = _rows(out.view(*shape, dim).transpose(1, 2), back)  # [B, H, T, N, D]
        lse = torch.gather(lse.view(shape).transpose(1, 2), -1, back)
        weight = torch.softmax(lse, dim=2).to(out.dtype)
        return (weight[..., None] * out).sum(2)

    def buckets(self, q: Tensor) -> Tensor:
        """The bucket of each token in each round, [B, H, T, N], by directions of q."""
        half = max(-(-q.shape[2] // (2 * self.chunk)), 1)
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        rotations = torch.randn(q.shape[-1], self.rounds, half, generator=generator).to(q)
        turned = torch.einsum("bhnd,dtk->bhtnk", q.detach(), rotations)
        return torch.cat([turned, -turned], dim=-1).argmax(-1)

    def extra_repr(self) -> str:
        """What `print` shows."""
        return (
            f"heads={self.num_heads}, chunk={self.chunk}, rounds={self.rounds},"
            f" causal={self.causal}"
        )


def _rows(x: Tensor, order: Tensor) -> Tensor:
    """Tokens of x [B, H, T or 1, N, D] in the order [B, H, T, N]."""
    wide = x.expand(*order.shape, x.shape[-1])
    return torch.gather(wide, 3, order[..., None].expand_as(wide))


def _by_rounds(x: Tensor) -> Tensor:
    """[B, H, T, N, D] as sequences [B * T, H, N, D]."""
    return x.transpose(1, 2).flatten(0, 1)
