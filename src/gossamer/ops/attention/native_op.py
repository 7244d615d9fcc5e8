# SPDX-License-Identifier: Apache-2.0
"""Attention over blocks as custom ops: forward, backward, shapes for tracers.

    s[i, j] = cap * tanh(scale q[i].k[j] / cap) + bias[i - j]      for pairs of the pattern whose
                                                                   positions[j] <= positions[i]
    out[i]  = sum over j of exp(s[i, j] - lse[i]) * keep[i, j] * v[j]

The forward keeps out and lse. The backward computes weights from lse again, block by block.

Legend: B batch, H heads, G heads of keys and values, N queries, M keys.
"""

from typing import Any

import torch
from torch import Tensor

from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.attention.blocks import (
    BlockList,
    head_lists,
    lists_of,
    native_tiles,
    picked,
)
from gossamer.ops.calls import define_op
from gossamer.ops.kernels import active_kernels
from gossamer.patterns.attention.sorted_parts import SortedParts, sorted_parts

_WHERE = "attention"
_ADVICE = "Use shorter sequences or a sparser pattern, a smaller batch, or free memory."
Gradients = tuple[Tensor | None, ...]


def _like(x: Tensor, dim: int) -> Tensor:
    """Empty, with heads before tokens or behind them as x has it."""
    batch, heads, tokens, _ = x.shape
    if x.stride(1) < x.stride(2):
        return x.new_empty(batch, tokens, heads, dim).transpose(1, 2)
    return x.new_empty(batch, heads, tokens, dim)


def _strided(x: Tensor) -> tuple[int, int, int, int]:
    return address(x, _WHERE), x.stride(0), x.stride(1), x.stride(2)


def _rows(x: Tensor) -> Tensor:
    """The same with the elements of a token side by side."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    return _like(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


@define_op("attention", _WHERE, _fake_forward, advice=_ADVICE)
def forward_op(  # noqa: PLR0913  (an op has tensors and numbers only)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ranges: Tensor | None,
    bias: Tensor | None,
    positions: Tensor | None,
    seed: Tensor | None,
    pattern: str,
    causal: bool,
    offset: int | None,
    scale: float,
    cap: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """The result [B, H, N, V], laid out as q, and lse [B, H, N]."""
    q, k, v = _rows(q), _rows(k), _rows(v)
    extras, settings = (ranges, bias, positions), (scale, cap, dropout, _seed(seed))
    parts = _parts(pattern, q, k, causal, offset, (*extras, seed))
    if parts is None:
        blocks = lists_of(pattern, q.shape[2], k.shape[2], q.shape[1], causal, offset)
        return _forward(q, k, v, blocks, extras, settings)
    rows, columns, back = picked(parts)
    near, near_lse = _forward(q, k, v, parts.near, extras, settings)
    far, far_lse = _forward(
        _taken(q, rows), _taken(k, columns), _taken(v, columns), parts.far, extras, settings
    )
    far, far_lse = _taken(far, back), _taken(far_lse, back)
    lse = torch.logaddexp(near_lse, far_lse)
    # A row without pairs in either part has -inf in both.
    most = lse.clamp_min(torch.finfo(torch.float32).min)
    near.copy_((near_lse - most).exp()[..., None] * near + (far_lse - most).exp()[..., None] * far)
    return near, lse


def _forward(
    q: Tensor, k: Tensor, v: Tensor, blocks: BlockList, extras: Any, settings: Any
) -> tuple[Tensor, Tensor]:
    out, lse = _like(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)
    tiles, before, _held = _call((q, k, v, out), lse, extras, blocks)
    _native.attention_forward(tiles, *before, *settings, active_kernels())
    return out, lse


def _parts(
    pattern: str, q: Tensor, k: Tensor, causal: bool, offset: int | None, extras: Any
) -> SortedParts | None:
    """A pattern in two lists, if it is cheaper so and nothing else depends on places."""
    if pattern.startswith("#") or any(extra is not None for extra in extras):
        return None
    return sorted_parts(pattern, q.shape[2], k.shape[2], q.shape[1], causal, offset)


def _taken(x: Tensor, order: Tensor | None) -> Tensor:
    """The same with other tokens."""
    return x if order is None else x.index_select(2, order)


def _seed(seed: Tensor | None) -> int:
    return 0 if seed is None else int(seed) & ((1 << 64) - 1)


def _call(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    lse: Tensor,
    extras: tuple[Tensor | None, ...],
    blocks: BlockList,
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """Tiles, the arguments both native calls begin with, and what must live until they end."""
    q, k, v, _ = tensors
    batch, heads, _, dim = q.shape
    lists = head_lists(blocks, heads)
    extras = tuple(None if t is None else t.contiguous() for t in extras)
    sizes = batch, heads, k.shape[1], dim, v.shape[-1], int(q.dtype is torch.bfloat16)
    arrays = tuple(address(t, _WHERE) for t in (lists, *extras))
    before = sizes, *(_strided(t) for t in tensors), address(lse, _WHERE), arrays
    return native_tiles(blocks), before, (blocks, lists, extras)


def _fake_backward(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _out, _lse, _ranges, bias, *_settings = others
    dq, dk, dv = (_like(t, t.shape[-1]) for t in (q, k, v))
    return dq, dk, dv, _empty_bias(q, bias)


def _empty_bias(q: Tensor, bias: Tensor | None) -> Tensor:
    shape = (0,) if bias is None else (q.shape[0], *bias.shape)
    return q.new_empty(shape, dtype=torch.float32)


@define_op("attention_backward", _WHERE, _fake_backward, advice=_ADVICE)
def backward_op(  # noqa: PLR0913  (as above)
    grad: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    ranges: Tensor | None,
    bias: Tensor | None,
    positions: Tensor | None,
    seed: Tensor | None,
    pattern: str,
    causal: bool,
    offset: int | None,
    scale: float,
    cap: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, and of the bias for each sequence of the batch."""
    tensors = tuple(_rows(t) for t in (grad, q, k, v, out))
    lse = lse.contiguous()
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    extras, settings = (ranges, bias, positions), (scale, cap, dropout, _seed(seed))
    parts = _parts(pattern, q, k, causal, offset, (*extras, seed))
    if parts is None:
        blocks = lists_of(pattern, q.shape[2], k.shape[2], q.shape[1], causal, offset)
        return _gradients(tensors, lse, grad_lse, blocks, extras, settings)
    # The weights of each part are those of all: lse is that of both.
    dq, dk, dv, dbias = _gradients(tensors, lse, grad_lse, parts.near, extras, settings)
    rows, columns, back = picked(parts)
    grad, q, k, v, out = tensors
    far = tuple(_taken(t, rows) for t in (grad, q)), tuple(_taken(t, columns) for t in (k, v))
    far_lse = None if grad_lse is None else _taken(grad_lse, rows)
    far_dq, far_dk, far_dv, _ = _gradients(
        (*far[0], *far[1], _taken(out, rows)),
        _taken(lse, rows),
        far_lse,
        parts.far,
        extras,
        settings,
    )
    dq += _taken(far_dq, back)
    dk.index_add_(2, columns, far_dk)
    dv.index_add_(2, columns, far_dv)
    return dq, dk, dv, dbias


def _gradients(
    tensors: tuple[Tensor, ...],
    lse: Tensor,
    grad_lse: Tensor | None,
    blocks: BlockList,
    extras: Any,
    settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad, q, k, v, out = tensors
    dq, dk, dv = (_like(t, t.shape[-1]) for t in (q, k, v))
    bias = extras[1]
    dbias = _empty_bias(q, bias)
    tiles, before, _held = _call((q, k, v, out), lse, extras, blocks)
    _native.attention_backward(
        tiles,
        *before,
        *settings,
        _strided(grad),
        address(grad_lse, _WHERE),
        *(_strided(t) for t in (dq, dk, dv)),
        0 if bias is None else address(dbias, _WHERE),
        active_kernels(),
    )
    return dq, dk, dv, dbias


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ranges, bias, positions, seed, *ctx.settings = inputs
    ctx.save_for_backward(q, k, v, *output, ranges, bias, positions, seed)
    ctx.set_materialize_grads(False)
    if ctx.settings[0].startswith("#"):
        heads = q.shape[1]
        ctx.held = lists_of(ctx.settings[0], q.shape[2], k.shape[2], heads, *ctx.settings[1:3])


def _backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> Gradients:
    q, k, v, out, lse, ranges, bias, positions, seed = ctx.saved_tensors
    if grad is None and grad_lse is None:
        return (None,) * 13
    if grad is None:
        grad = torch.zeros_like(out)
    dq, dk, dv, dbias = backward_op(
        grad, grad_lse, q, k, v, out, lse, ranges, bias, positions, seed, *ctx.settings
    )
    wants_bias = bias is not None and ctx.needs_input_grad[4]
    return dq, dk, dv, None, dbias.sum(0) if wants_bias else None, *(None,) * 8


forward_op.register_autograd(_backward, setup_context=_save)
