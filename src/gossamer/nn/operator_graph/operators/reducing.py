# SPDX-License-Identifier: Apache-2.0
"""Operators along axes (sums, means, softmax, norms) and products of matrices."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.errors import InputError


def _product(x: Tensor, dim: list[int], keepdim: bool) -> Tensor:
    for place in sorted((d % x.ndim for d in dim), reverse=True):
        x = x.prod(place, keepdim=keepdim, dtype=x.dtype)
    return x


def _reduction(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Axes are an attribute up to opset 12 or 17 and an input from then on."""

    def reduced(
        x: Tensor,
        given: Tensor | None = None,
        /,
        *,
        axes: tuple[int, ...] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        chosen = given.tolist() if given is not None else list(axes or ())
        if not chosen and noop_with_empty_axes:
            return x
        dims = chosen or list(range(x.ndim))
        return function(x, dim=dims, keepdim=bool(keepdims)) if dims else x

    return reduced


def _extreme(find: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def place(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
        if select_last_index:
            return x.shape[axis] - 1 - find(x.flip(axis), dim=axis, keepdim=bool(keepdims))
        return find(x, dim=axis, keepdim=bool(keepdims))

    return place


def _flat_softmax(x: Tensor, *, axis: int = 1) -> Tensor:
    """Before opset 13 everything from `axis` on was one row."""
    axis += x.ndim if axis < 0 else 0
    return x.flatten(axis).softmax(dim=-1).reshape(x.shape)


def _gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    /,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    product = alpha * ((a.T if transA else a) @ (b.T if transB else b))
    return product if c is None else product + beta * c


def _attention(
    query: Tensor, keys: Tensor, value: Tensor, bias: Tensor | None = None, /, *, scale: float
) -> Tensor:
    """softmax(query keys * scale + bias) value, keys turned already: [..., features, tokens]."""
    return F.scaled_dot_product_attention(
        query, keys.transpose(-1, -2), value, attn_mask=bias, scale=scale
    )


def _layer_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    /,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:
    return F.layer_norm(x, x.shape[axis:], scale, bias, epsilon)


def _batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    /,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Tensor:
    if training_mode:
        raise InputError("BatchNormalization: training_mode is on; export for inference.")
    return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)


REDUCING: dict[str, Callable[..., Any]] = {
    "ArgMax": _extreme(torch.argmax),
    "ArgMin": _extreme(torch.argmin),
    "BatchNormalization": _batch_norm,
    "FlatSoftmax": _flat_softmax,
    "Gemm": _gemm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": lambda x, *, axis=-1: x.log_softmax(axis),
    "MatMul": lambda a, b: torch.matmul(a, b),
    "ReduceL2": _reduction(torch.linalg.vector_norm),
    "ReduceMax": _reduction(torch.amax),
    "ReduceMean": _reduction(torch.mean),
    "ReduceMin": _reduction(torch.amin),
    "ReduceProd": _reduction(_product),
    "ReduceSum": _reduction(lambda x, dim, keepdim: x.sum(dim, keepdim=keepdim, dtype=x.dtype)),
    "ScaledAttention": _attention,
    "Softmax": lambda x, *, axis=-1: x.softmax(axis),
}
