# SPDX-License-Identifier: Apache-2.0
"""ReLU, ELU, dropout and sums between products of large graphs, in memory that is used again.

torch maps and clears the pages of each large result anew, which takes several times as long as the
function itself (`ops/results.py`). These compute with torch's own kernels into such results,
forward and backward: the same bits, and dropout draws the same numbers.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.ops.addresses import direct_address
from gossamer.ops.calls import is_traced
from gossamer.ops.results import is_large, new_result

__all__ = ["add", "dropout", "elu", "relu"]

_aten = torch.ops.aten


def _like(x: Tensor) -> Tensor:
    return new_result(x, *x.shape)


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.clamp_min(x, 0.0, out=_like(x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            passed: Tensor = grad * (y > 0)
            return passed
        dx: Tensor = _aten.threshold_backward.grad_input(grad, y, 0, grad_input=_like(y))
        return dx


class _Elu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.settings = alpha, 1.0, 1.0, False
        y: Tensor = _aten.elu.out(x, alpha, out=_like(x))
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _aten.elu_backward(grad, *ctx.settings, x), None
        return _aten.elu_backward.grad_input(grad, *ctx.settings, x, grad_input=_like(x)), None


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        keep = _like(x).bernoulli_(1.0 - p).div_(1.0 - p)
        ctx.save_for_backward(keep)
        return torch.mul(x, keep, out=_like(x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return grad * keep, None
        return torch.mul(grad, keep, out=_like(keep)), None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return torch.add(x, y, out=_like(x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


def _runs_here(x: Tensor) -> bool:
    return (
        isinstance(x, Tensor)
        and x.ndim == 2
        and x.layout is torch.strided
        and is_large(x, *x.shape)
        and x.is_contiguous()
        and direct_address(x) != 0
        and not is_traced(x)
    )


def relu(x: Tensor, inplace: bool = False) -> Tensor:
    """`F.relu`."""
    if inplace or not _runs_here(x):
        return F.relu(x, inplace)
    y: Tensor = _Relu.apply(x)  # type: ignore[no-untyped-call]
    return y


def elu(x: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """`F.elu`."""
    if inplace or not _runs_here(x):
        return F.elu(x, alpha, inplace)
    y: Tensor = _Elu.apply(x, alpha)  # type: ignore[no-untyped-call]
    return y


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`F.dropout`, with the same random numbers."""
    if inplace or not training or not 0.0 < p < 1.0 or not _runs_here(x):
        return F.dropout(x, p, training, inplace)
    y: Tensor = _Dropout.apply(x, p)  # type: ignore[no-untyped-call]
    return y


def add(x: Tensor, y: Tensor) -> Tensor:
    """`x + y`."""
    if x.shape != y.shape or x.dtype is not y.dtype or not (_runs_here(x) and _runs_here(y)):
        return x + y
    total: Tensor = _Add.apply(x, y)  # type: ignore[no-untyped-call]
    return total
