# SPDX-License-Identifier: Apache-2.0
"""Products with compressed activations, and with compressed gradients of their outputs.

Legend: T rows (tokens), K columns (inputs), R outputs, n kept values.
"""

import torch
import torch.nn.functional as F

from gossamer.ops.operators.compressed import CompressedTensor
from gossamer.ops.operators.csr import at_entries, matrix
from gossamer.ops.operators.kernels import Call, add_backward, add_forward

Gradients = tuple[torch.Tensor | None, ...]


def _same_type(call: Call) -> bool:
    """All of one type, which torch's sparse products need; no `out=`, and torch's own function."""
    types = {x.dtype for x in call.tensors()}
    return len(types) == 1 and "out" not in call.kwargs


@add_forward("linear", ("csr",), "dense", _same_type)
def _linear(
    call: Call, x: CompressedTensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    call.saved = x, weight
    y_TR = matrix(x) @ weight.t()
    y_TR = y_TR if bias is None else y_TR.add_(bias)
    return y_TR.view(*x.shape[:-1], len(weight))


@add_backward("linear", ("csr",), "dense")
def _linear_backward(call: Call, gradient: torch.Tensor) -> Gradients:
    x, weight = call.saved
    grad_TR = gradient.reshape(-1, len(weight))
    needs = (*call.needs, False)
    return (
        at_entries(grad_TR, weight, x) if needs[0] else None,
        (matrix(x).t() @ grad_TR).t() if needs[1] else None,
        grad_TR.sum(0) if needs[2] else None,
    )[: len(call.needs)]


def _is_plain(call: Call) -> bool:
    x = call.args[0]
    return _same_type(call) and x.ndim > 1 and x.dtype in (torch.float32, torch.float64)


@add_forward("linear", (), "dense", _is_plain)
def _dense_linear(
    call: Call, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    call.saved = x, weight
    y = F.linear(x, weight, bias)
    kept = call.inline.apply(y)
    return y if kept is None else kept


@add_backward("linear", (), "csr")
def _linear_from_rows(call: Call, gradient: CompressedTensor) -> Gradients:
    x, weight = call.saved
    needs, grad_TR = (*call.needs, False), matrix(gradient)
    x_TK = x.reshape(-1, weight.shape[1])
    return (
        (grad_TR @ weight).view(x.shape) if needs[0] else None,
        grad_TR.t() @ x_TK if needs[1] else None,
        _column_sums(gradient) if needs[2] else None,
    )[: len(call.needs)]


def _column_sums(x: CompressedTensor) -> torch.Tensor:
    values = x.parts["values"]
    return values.new_zeros(x.shape[-1]).index_add_(0, x.parts["columns"], values)


def _matrix_right(call: Call) -> bool:
    return _same_type(call) and len(call.args) == 2 and call.args[1].ndim == 2


@add_forward("matmul", ("csr",), "dense", _matrix_right)
def _matmul(call: Call, x: CompressedTensor, other: torch.Tensor) -> torch.Tensor:
    call.saved = x, other
    return (matrix(x) @ other).view(*x.shape[:-1], other.shape[1])


@add_backward("matmul", ("csr",), "dense")
def _matmul_backward(call: Call, gradient: torch.Tensor) -> Gradients:
    x, other_KR = call.saved
    grad_TR = gradient.reshape(-1, other_KR.shape[1])
    return (
        at_entries(grad_TR, other_KR.t(), x) if call.needs[0] else None,
        matrix(x).t() @ grad_TR if call.needs[1] else None,
    )


def _matrices(call: Call) -> bool:
    return _matrix_right(call) and _is_plain(call)


@add_forward("matmul", (), "dense", _matrices)
def _dense_matmul(call: Call, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    call.saved = x, other
    y = x @ other
    kept = call.inline.apply(y)
    return y if kept is None else kept


@add_backward("matmul", (), "csr")
def _matmul_from_rows(call: Call, gradient: CompressedTensor) -> Gradients:
    x, other_KR = call.saved
    grad_TR = matrix(gradient)
    return (
        (grad_TR @ other_KR.t()).view(x.shape) if call.needs[0] else None,
        (grad_TR.t() @ x.reshape(-1, len(other_KR))).t() if call.needs[1] else None,
    )
