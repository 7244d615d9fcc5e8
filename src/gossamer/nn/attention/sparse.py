# SPDX-License-Identifier: Apache-2.0
"""Attention over a pattern, with the parameters and the call of `torch.nn.MultiheadAttention`.

Legend: B batch, N queries, M keys, E features.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.errors import InputError
from gossamer.ops.attention import attention
from gossamer.patterns.attention import parse_attention

_WHERE = "SparseAttention"


class SparseAttention(nn.Module):
    """Multi-head attention over the pairs of a pattern, forward and backward.

    Parameters are those of `torch.nn.MultiheadAttention` by name and shape, so that states go both
    ways. Weights are never given back: they do not exist as a matrix.

    Args:
        embed_dim: features of a token.
        num_heads: of queries; divides embed_dim.
        pattern: which pairs attend, such as 'window:512+global:64'; one text per group of heads.
        causal: tokens attend up to their own position only.
        dropout: of weights, while training.
        bias: of the projections.
        kv_heads: of keys and values; None = as many as of queries.
        batch_first: inputs are [B, N, E], not [N, B, E].
        global_tokens: so many first tokens attend to all by projections of their own (Longformer);
            the pattern needs 'global:' with as many, so that all attend to them.
        alibi: scores fall with distance, by the published slopes.
        softcap: scores become cap * tanh(score / cap).
    """

    # torch's encoder layer asks for it: its fused path would go past the pattern.
    _qkv_same_embed_dim = False

    def __init__(  # noqa: PLR0913  (one argument per thing a user may ask for)
        self,
        embed_dim: int,
        num_heads: int,
        pattern: str | list[str] = "full",
        *,
        causal: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        kv_heads: int | None = None,
        batch_first: bool = False,
        global_tokens: int = 0,
        alibi: bool = False,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        kv_heads = num_heads if kv_heads is None else kv_heads
        if num_heads < 1 or embed_dim % num_heads or kv_heads < 1 or num_heads % kv_heads:
            raise InputError(
                f"{_WHERE}: {num_heads} heads ({kv_heads} of keys) over {embed_dim} features;"
                " expected heads that divide the features, and heads of keys that divide them."
            )
        parsed = parse_attention(pattern)
        parsed.group_of(0, num_heads)
        if global_tokens and causal:
            raise InputError(
                f"{_WHERE}: global tokens see what comes later; they cannot be causal."
            )
        self.embed_dim, self.num_heads, self.kv_heads = embed_dim, num_heads, kv_heads
        self.head_dim = embed_dim // num_heads
        self.pattern, self.causal, self.dropout = str(parsed), causal, dropout
        self.batch_first, self.global_tokens = batch_first, global_tokens
        self.alibi, self.softcap = alibi, softcap
        rows = embed_dim + 2 * kv_heads * self.head_dim
        self.in_proj_weight = nn.Parameter(torch.empty(rows, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.empty(rows)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.global_proj = nn.Linear(embed_dim, rows, bias=bias) if global_tokens else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As `torch.nn.MultiheadAttention` begins; global projections begin as copies."""
        nn.init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        if self.global_proj is not None:
            self._copy_to_global()

    def _copy_to_global(self) -> None:
        with torch.no_grad():
            self.global_proj.weight.copy_(self.in_proj_weight)  # type: ignore[union-attr]
            if self.in_proj_bias is not None:
                self.global_proj.bias.copy_(self.in_proj_bias)  # type: ignore[union-attr]

    @classmethod
    def from_dense(
        cls, dense: nn.MultiheadAttention, pattern: str | list[str], **settings: Any
    ) -> "SparseAttention":
        """The same parameters with a pattern; global projections begin as copies.

        Args:
            dense: the layer whose parameters are taken, not copied.
            pattern: as of the class.
            settings: as of the class.
        """
        if (
            not dense._qkv_same_embed_dim
            or dense.bias_k is not None
            or dense.add_zero_attn
            or type(dense) is not nn.MultiheadAttention
        ):
            raise InputError(
                f"{_WHERE}: {type(dense).__name__} with kdim, vdim, add_bias_kv or add_zero_attn,"
                " or of another class, has no sparse form. Leave it out."
            )
        new = cls(
            dense.embed_dim,
            dense.num_heads,
            pattern,
            dropout=dense.dropout,
            bias=dense.in_proj_bias is not None,
            batch_first=dense.batch_first,
            **settings,
        )
        new.in_proj_weight, new.out_proj = dense.in_proj_weight, dense.out_proj
        new.in_proj_bias = dense.in_proj_bias
        if new.global_proj is not None:
            new.global_proj.to(dense.in_proj_weight)
            new._copy_to_global()
        return new.train(dense.training)

    def forward(  # noqa: PLR0913  (as torch has it)
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        documents: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """The result, shaped as the query, and None in the place of weights.

        Args:
            query: [B, N, E] if batch_first, else [N, B, E].
            key: as query; None = the query.
            value: as key; None = the key.
            key_padding_mask: [B, M], True where a key is padding, at the end of a sequence only.
            need_weights: not possible.
            attn_mask: not possible, except beside is_causal, whose mask it then is.
            average_attn_weights: means nothing here.
            is_causal: as `causal` of the class, for this call.
            documents: [B, N] or [N], the document of each token where several are packed.
        """
        if need_weights:
            raise InputError(
                f"{_WHERE}: weights never exist as a matrix; call with need_weights=False."
            )
        if attn_mask is not None and not is_causal:
            raise InputError(
                f"{_WHERE}: a mask of all pairs is what a pattern avoids. Say it in the pattern, or"
                " give is_causal=True if it is the causal one."
            )
        if documents is not None and self.global_proj is not None:
            raise InputError(
                f"{_WHERE}: global tokens belong to no document; leave one of them out."
            )
        key = query if key is None else key
        value = key if value is None else value
        if not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        lengths = _lengths(key_padding_mask)
        q, k, v = self._heads(query, key, value, self.in_proj_weight, self.in_proj_bias)
        out = attention(
            q,
            k,
            v,
            self.pattern,
            causal=self.causal or is_causal,
            lengths=lengths,
            documents=documents,
            dropout=self.dropout if self.training else 0.0,
            softcap=self.softcap,
            alibi=self.alibi,
        )
        if self.global_proj is not None:
            out = self._with_global(self.global_proj, out, (query, key, value), lengths)
        merged = out.transpose(1, 2).reshape(query.shape[0], query.shape[1], self.embed_dim)
        result = self.out_proj(merged)
        return (result if self.batch_first else result.transpose(0, 1)), None

    def _heads(
        self, query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        narrow = self.kv_heads * self.head_dim
        sizes = [self.embed_dim, narrow, narrow]
        if query is key and key is value:
            parts = torch.split(F.linear(query, weight, bias), sizes, dim=-1)
        else:
            biases = (None,) * 3 if bias is None else torch.split(bias, sizes)
            parts = tuple(
                F.linear(x, w, b)
                for x, w, b in zip(
                    (query, key, value), torch.split(weight, sizes), biases, strict=True
                )
            )
        q, k, v = (p.view(*p.shape[:2], -1, self.head_dim).transpose(1, 2) for p in parts)
        return q, k, v

    def _with_global(
        self,
        proj: nn.Linear,
        out: Tensor,
        given: tuple[Tensor, Tensor, Tensor],
        lengths: Tensor | None,
    ) -> Tensor:
        """The rows of global tokens anew: to all keys, by their own projections."""
        query, key, value = given
        q, k, v = self._heads(query[:, : self.global_tokens], key, value, proj.weight, proj.bias)
        rows = attention(q, k, v, lengths=lengths, offset=0)
        return torch.cat([rows, out[:, :, self.global_tokens :]], dim=2)

    def extra_repr(self) -> str:
        """What `print` shows."""
        return (
            f"{self.embed_dim}, heads={self.num_heads}, pattern='{self.pattern}',"
            f" causal={self.causal}"
        )


def _lengths(padding: Tensor | None) -> Tensor | None:
    """How many keys of each sequence are none of the padding behind them."""
    if padding is None:
        return None
    is_padding = padding if padding.dtype is torch.bool else padding != 0
    lengths = (~is_padding).sum(1)
    if not torch.compiler.is_compiling():
        place = torch.arange(padding.shape[1], device=padding.device)
        if not torch.equal(place < lengths[:, None], ~is_padding):
            raise InputError(
                f"{_WHERE}: padding must stand at the end of a sequence; found tokens behind some."
                " Pad on the right."
            )
    return lengths
