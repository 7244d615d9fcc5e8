# SPDX-License-Identifier: Apache-2.0
"""`gossamer.attention`: checks, what is added to a pattern, and which path computes it."""

import math
from typing import Any

import torch
from torch import Tensor

from gossamer.errors import InputError
from gossamer.ops.attention.blocks import PatternLike, lists_of, name_of
from gossamer.ops.attention.native_op import forward_op
from gossamer.ops.attention.ranges import alibi_bias, alibi_slopes, ranges_of
from gossamer.ops.attention.torch_form import Extras, by_torch
from gossamer.ops.calls import call_op
from gossamer.ops.without_native import why_missing

_WHERE = "attention"
_NATIVE = (torch.float32, torch.bfloat16)
_MOST_DIM = 1024


def attention(  # noqa: PLR0913  (one argument per thing a user may ask for)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: PatternLike = "full",
    *,
    causal: bool = False,
    scale: float | None = None,
    lengths: Tensor | None = None,
    documents: Tensor | None = None,
    bias: Tensor | None = None,
    alibi: bool | Tensor = False,
    softcap: float | None = None,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
    offset: int | None = None,
    positions: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention over the pairs of a pattern, forward and backward, at the cost of its blocks.

    Float32 and bfloat16 on the CPU run on native kernels, whose results are the same for any number
    of threads. A query that attends to nothing gives 0.

    Args:
        q: [batch, heads, queries, dim].
        k: [batch, kv_heads, keys, dim]; kv_heads divides heads (grouped queries).
        v: [batch, kv_heads, keys, value_dim].
        pattern: which pairs attend: a text such as 'window:512+global:64', one text per group of
            heads, or a BlockList.
        causal: queries attend up to their own position only.
        scale: of the products; None = 1 / sqrt(dim).
        lengths: [batch], tokens of each sequence that are no padding.
        documents: [batch, tokens] or [tokens], the document of each token where several are packed
            into a sequence; tokens attend within their own.
        bias: [heads, queries + keys - 1], added to scores by distance: that of query i and key j is
            at i - j + keys - 1. It may need gradients.
        alibi: True for the published slopes, or a slope for each head.
        softcap: scores become cap * tanh(score / cap), before biases.
        dropout: the probability that a weight is dropped.
        seed: of dropout, for the same weights again; None = drawn from torch's generator.
        offset: the position of the first query among the keys; None: the last query stands at the
            last key.
        positions: [batch, heads, tokens], where tokens that were sorted stood: no query attends to
            a key that stood behind it. `causal` and distances are about the order they have now.
        return_lse: also give the logarithm of each row's sum of exponentials, float32 [batch,
            heads, queries]; -inf for a query that attends to nothing.

    Returns:
        [batch, heads, queries, value_dim], or that and the logarithms.
    """
    _check(q, k, v, dropout, softcap)
    queries, keys = q.shape[2], k.shape[2]
    first = keys - queries if offset is None else offset
    ranges = ranges_of(lengths, documents, q.shape[0], queries, keys, first)
    if positions is not None:
        positions = _positions_of(q, k, positions)
    bias = _bias_of(q, k, bias, alibi, first)
    drawn = _seed_of(seed) if dropout else None
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    name, cap = name_of(pattern), float(softcap or 0.0)
    if _runs_native(q, k, v):
        out, lse = call_op(
            forward_op,
            _WHERE,
            q,
            k,
            v,
            ranges,
            bias,
            positions,
            drawn,
            name,
            causal,
            offset,
            scale,
            cap,
            dropout,
        )
    else:
        blocks = lists_of(name, queries, keys, q.shape[1], causal, offset)
        out, lse = by_torch(
            q, k, v, blocks, Extras(ranges, bias, positions, drawn, scale, cap, dropout)
        )
    return (out, lse) if return_lse else out


def _runs_native(*tensors: Tensor) -> bool:
    is_known = tensors[0].dtype in _NATIVE and why_missing() is None
    return is_known and all(t.device.type == "cpu" for t in tensors)


def _check(q: Tensor, k: Tensor, v: Tensor, dropout: float, softcap: float | None) -> None:
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if any(t.ndim != 4 for t in (q, k, v)):
        raise InputError(f"{_WHERE}: expected [batch, heads, tokens, dim] each, got {shapes}.")
    if q.dtype != k.dtype or q.dtype != v.dtype or not q.is_floating_point():
        raise InputError(
            f"{_WHERE}: q, k and v must have one floating point dtype, got {q.dtype}, {k.dtype},"
            f" {v.dtype}."
        )
    if q.shape[0] != k.shape[0] or q.shape[0] != v.shape[0]:
        raise InputError(f"{_WHERE}: queries, keys and values differ in their batch: {shapes}.")
    if k.shape[:3] != v.shape[:3]:
        raise InputError(f"{_WHERE}: keys and values differ in heads or tokens: {shapes}.")
    if q.shape[3] != k.shape[3]:
        raise InputError(f"{_WHERE}: queries and keys differ in dim: {shapes}.")
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise InputError(f"{_WHERE}: heads of keys must divide those of queries: {shapes}.")
    if not (1 <= q.shape[3] <= _MOST_DIM and 1 <= v.shape[3] <= _MOST_DIM):
        raise InputError(f"{_WHERE}: dim must be 1 to {_MOST_DIM}: {shapes}.")
    if not 0.0 <= dropout < 1.0:
        raise InputError(f"{_WHERE}: dropout must be in [0, 1), got {dropout}.")
    if softcap is not None and not softcap > 0.0:
        raise InputError(f"{_WHERE}: softcap must be positive, got {softcap}.")


def _bias_of(
    q: Tensor, k: Tensor, bias: Tensor | None, alibi: bool | Tensor, offset: int
) -> Tensor | None:
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    distances = max(queries + keys - 1, 0)
    exact = torch.float64 if q.dtype is torch.float64 else torch.float32
    if bias is not None:
        if tuple(bias.shape) != (heads, distances):
            raise InputError(
                f"{_WHERE}: bias must be [heads, queries + keys - 1] = [{heads}, {distances}], by"
                f" distance, got {list(bias.shape)}."
            )
        bias = bias.to(exact)
    if alibi is False:
        return bias
    slopes = alibi_slopes(heads) if alibi is True else alibi
    if tuple(slopes.shape) != (heads,):
        raise InputError(f"{_WHERE}: alibi must be a slope for each of {heads} heads.")
    added = alibi_bias(slopes.to(q.device, exact), queries, keys, offset)
    return added if bias is None else bias + added


def _positions_of(q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    shape = tuple(q.shape[:3])
    if tuple(positions.shape) != shape or positions.is_floating_point() or k.shape[2] != shape[2]:
        raise InputError(
            f"{_WHERE}: positions must be whole numbers of shape {list(shape)} with as many keys as"
            f" queries, got {positions.dtype} {list(positions.shape)} for {k.shape[2]} keys."
        )
    return positions.to(torch.int32)


def _seed_of(seed: int | Tensor | None) -> Tensor:
    if seed is None:
        return torch.randint(0, 1 << 62, (), dtype=torch.int64)
    return seed if isinstance(seed, Tensor) else torch.tensor(seed, dtype=torch.int64)


def attention_path(q: Tensor, k: Tensor, v: Tensor) -> str:
    """What computes attention of these tensors, and why."""
    if _runs_native(q, k, v):
        return "native blocks"
    reason = why_missing() or f"kernels run float32 and bfloat16 on the CPU, not {q.dtype}"
    return f"torch, block by block: {reason}"
