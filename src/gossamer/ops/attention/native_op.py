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
from gossamer.ops.attention.blocks import head_lists, lists_of, native_tiles
from gossamer.ops.calls import define_op
from gossamer.ops.kernels import active_kernels

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
    out, lse = _like(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)
    tiles, before, _held = _call(
        (q, k, v, out), lse, (ranges, bias, positions), (pattern, causal, offset)
    )
    _native.attention_forward(tiles, *before, scale, cap, dropout, _seed(seed), active_kernels())
    return out, lse


def _seed(seed: Tensor | None) -> int:
    return 0 if seed is None else int(seed) & ((1 << 64) - 1)


def _call(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    lse: Tensor,
    extras: tuple[Tensor | None, ...],
    pattern: tuple[str, bool, int | None],
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """Tiles, the arguments both native calls begin with, and what must live until they end."""
    q, k, v, _ = tensors
    batch, heads, queries, dim = q.shape
    name, causal, offset = pattern
    blocks = lists_of(name, queries, k.shape[2], heads, causal, offset)
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
    q, k, v, grad, out = (_rows(t) for t in (q, k, v, grad, out))
    lse = lse.contiguous()
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    dq, dk, dv = (_like(t, t.shape[-1]) for t in (q, k, v))
    dbias = _empty_bias(q, bias)
    tiles, before, _held = _call(
        (q, k, v, out), lse, (ranges, bias, positions), (pattern, causal, offset)
    )
    _native.attention_backward(
        tiles,
        *before,
        scale,
        cap,
        dropout,
        _seed(seed),
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
