# SPDX-License-Identifier: Apache-2.0
"""Sums and maxima over edges, and dot products along them.

The three products are closed under differentiation. With A the matrix of the edges' values v:

    S(x, v) = A(v) x                 dx = S^T(g, v)     dv = D(g, x)
    D(g, x) = g[target] . x[source]  dg = S(x, u)       dx = S^T(g, u)

Legend: N sources, M targets, E edges, F features, H heads.
"""

from typing import Any

import torch
from torch import Tensor

from gossamer.errors import InputError
from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.calls import call_op, define_op
from gossamer.ops.kernels import active_kernels
from gossamer.ops.results import new_result
from gossamer.ops.spmm.edges import MATRICES, EdgeMatrix

_WHERE = "graph product"
_ADVICE = "Use narrower layers, sample neighbours, or free memory."
Gradients = tuple[Tensor | None, ...]


def runs_native(*tensors: Tensor | None) -> bool:
    """Whether all are what the kernels take."""
    return all(t is None or (t.dtype is torch.float32 and t.device.type == "cpu") for t in tensors)


def is_half(x: Tensor) -> bool:
    """Whether features are bfloat16 on the CPU, which kernels add up in float32."""
    return x.dtype is torch.bfloat16 and x.device.type == "cpu"


def _rows(matrix: EdgeMatrix, transposed: bool) -> int:
    return matrix.edges.num_sources if transposed else matrix.edges.num_targets


@define_op(
    "spmm",
    _WHERE,
    lambda x, values, bias, matrix, transposed, heads, num_rows: x.new_empty(num_rows, x.shape[1]),
    advice=_ADVICE,
)
def _spmm(
    x: Tensor,
    values: Tensor | None,
    bias: Tensor | None,
    matrix: int,
    transposed: bool,
    heads: int,
    num_rows: int,
) -> Tensor:
    found = MATRICES.find(matrix)
    x, y = x.contiguous(), new_result(x, num_rows, x.shape[1])
    if values is not None:
        rows, values = found.edges.rows(transposed=transposed).native, values.contiguous()
    elif transposed:
        rows, values = found.plain_by_source, found.values_by_source
    else:
        rows, values = found.edges.by_target.native, found.values
    _native.graph_spmm(
        rows,
        address(values, _WHERE),
        heads,
        address(None if bias is None else bias.contiguous(), _WHERE),
        address(x, _WHERE),
        address(y, _WHERE),
        x.shape[1],
        is_half(x),
        active_kernels(),
    )
    return y


@define_op(
    "sddmm",
    _WHERE,
    lambda grad, x, matrix, transposed, heads, num_edges: x.new_empty(
        (num_edges, heads) if heads > 1 else (num_edges,)
    ),
    advice=_ADVICE,
)
def _sddmm(
    grad: Tensor, x: Tensor, matrix: int, transposed: bool, heads: int, num_edges: int
) -> Tensor:
    grad, x = grad.contiguous(), x.contiguous()
    out = x.new_empty((num_edges, heads) if heads > 1 else (num_edges,))
    _native.graph_sddmm(
        MATRICES.find(matrix).edges.rows(transposed=transposed).native,
        address(grad, _WHERE),
        address(x, _WHERE),
        address(out, _WHERE),
        heads,
        x.shape[1],
        active_kernels(),
    )
    return out


def _save_spmm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, _, *ctx.settings = inputs
    needs_values = values is not None and ctx.needs_input_grad[1]
    # Without weights that learn nothing is kept: the gradient is the product with the transpose.
    ctx.save_for_backward(x if needs_values else None, values)
    ctx.num_columns = x.shape[0]
    ctx.held = MATRICES.find(ctx.settings[0])  # the number alone would not keep it for the backward


def _spmm_backward(ctx: Any, grad: Tensor) -> Gradients:
    x, values = ctx.saved_tensors
    matrix, transposed, heads, _ = ctx.settings
    needs_x, needs_values, needs_bias = ctx.needs_input_grad[:3]
    dx = dvalues = None
    if needs_x:
        dx = _spmm(grad, values, None, matrix, not transposed, heads, ctx.num_columns)
    if needs_values:
        dvalues = _sddmm(grad.float(), x.float(), matrix, transposed, heads, values.shape[0])
    dbias = grad.sum(0, dtype=torch.float32) if needs_bias else None
    return dx, dvalues, dbias, None, None, None, None


def _save_sddmm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.settings = inputs[2:5]
    ctx.held = MATRICES.find(inputs[2])


def _sddmm_backward(ctx: Any, grad: Tensor) -> Gradients:
    g, x = ctx.saved_tensors
    matrix, transposed, heads = ctx.settings
    needs_g, needs_x = ctx.needs_input_grad[:2]
    dg = dx = None
    if needs_g:
        dg = _spmm(x, grad, None, matrix, transposed, heads, g.shape[0])
    if needs_x:
        dx = _spmm(g, grad, None, matrix, not transposed, heads, x.shape[0])
    return dg, dx, None, None, None, None


_spmm.register_autograd(_spmm_backward, setup_context=_save_spmm)
_sddmm.register_autograd(_sddmm_backward, setup_context=_save_sddmm)


@define_op(
    "spmm_max",
    _WHERE,
    lambda x, matrix, num_rows: (
        x.new_empty(num_rows, x.shape[1]),
        x.new_empty(num_rows, x.shape[1]),
    ),
    advice=_ADVICE,
)
def _spmm_max(x: Tensor, matrix: int, num_rows: int) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    y, ties = (new_result(x, num_rows, x.shape[1]) for _ in range(2))
    _native.graph_max(
        MATRICES.find(matrix).edges.by_target.native,
        *(address(t, _WHERE) for t in (x, y, ties)),
        x.shape[1],
        active_kernels(),
    )
    return y, ties


@define_op(
    "spmm_max_backward",
    _WHERE,
    lambda grad, x, y, matrix: torch.empty_like(x),
    advice=_ADVICE,
)
def _max_backward(grad: Tensor, x: Tensor, y: Tensor, matrix: int) -> Tensor:
    x, grad = x.contiguous(), grad.contiguous()
    dx = new_result(x, *x.shape)
    _native.graph_max_backward(
        MATRICES.find(matrix).edges.by_source.native,
        *(address(t, _WHERE) for t in (x, y, grad, dx)),
        x.shape[1],
        active_kernels(),
    )
    return dx


def _save_max(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], *output)
    ctx.matrix = inputs[1]
    ctx.held = MATRICES.find(ctx.matrix)
    ctx.set_materialize_grads(False)


def _spmm_max_backward(ctx: Any, grad: Tensor | None, of_ties: Tensor | None) -> Gradients:
    x, y, ties = ctx.saved_tensors
    if grad is None:
        return None, None, None
    # Edges that reach the maximum share its gradient, as in torch.amax.
    return _max_backward(grad / ties.clamp_min(1.0), x, y, ctx.matrix), None, None


_spmm_max.register_autograd(_spmm_max_backward, setup_context=_save_max)


def _check(x: Tensor, num_columns: int, heads: int = 1) -> None:
    if x.ndim != 2 or x.shape[0] != num_columns:
        raise InputError(
            f"{_WHERE}: expected features [{num_columns}, F], one row for each node, got"
            f" {list(x.shape)}."
        )
    if x.layout is not torch.strided:
        raise InputError(f"{_WHERE}: features have layout {x.layout}. Use x.to_dense().")
    if x.shape[1] % heads:
        raise InputError(f"{_WHERE}: {x.shape[1]} features cannot be shared by {heads} heads.")


def spmm(
    x: Tensor,
    matrix: EdgeMatrix,
    values: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    transposed: bool = False,
) -> Tensor:
    """`A x + bias` with A [M, N] of the edges, or `A^T x`.

    Args:
        x: [N, F], or [M, F] if transposed.
        matrix: A.
        values: weights of the edges in place of its own: [E], or [E, H] where each head has F / H
            features. They may need gradients.
        bias: [F].
        transposed: multiply by the transpose.

    bfloat16 features are added up in float32 and rounded once; weights of edges stay float32.
    """
    edges = matrix.edges
    heads = 1 if values is None or values.ndim == 1 else values.shape[1]
    _check(x, edges.num_targets if transposed else edges.num_sources, heads)
    if values is not None and values.shape[0] != edges.num_edges:
        raise InputError(
            f"{_WHERE}: expected weights of {edges.num_edges} edges, got {list(values.shape)}."
        )
    if is_half(x):  # weights and bias are few: they lose nothing
        values = None if values is None else values.float()
        bias = None if bias is None else bias.float()
    if runs_native(values, bias) and (is_half(x) or runs_native(x)):
        settings = matrix.number, transposed, heads, _rows(matrix, transposed)
        return call_op(_spmm, _WHERE, x, values, bias, *settings)
    return _sum_by_torch(x, matrix, values, bias, transposed, heads)


def _sum_by_torch(
    x: Tensor,
    matrix: EdgeMatrix,
    values: Tensor | None,
    bias: Tensor | None,
    transposed: bool,
    heads: int,
) -> Tensor:
    """The same for any dtype and device; it holds [E, F]."""
    targets, sources = endpoints(matrix, x.device)
    to, at = (sources, targets) if transposed else (targets, sources)
    weight = matrix.values if values is None else values
    messages = x.index_select(0, at)
    if weight is not None:
        weight = weight.to(x.device, x.dtype).view(-1, heads, 1)
        messages = (messages.view(len(at), heads, x.shape[1] // heads) * weight).view(
            len(at), x.shape[1]
        )
    y = x.new_zeros(_rows(matrix, transposed), x.shape[1]).index_add(0, to, messages)
    return y if bias is None else y + bias


def endpoints(matrix: EdgeMatrix, device: torch.device) -> tuple[Tensor, Tensor]:
    """Target and source of every edge as they lie, int64."""
    targets, sources = matrix.edges.endpoints
    return targets.to(device), sources.to(device)


def spmm_max(x: Tensor, matrix: EdgeMatrix) -> Tensor:
    """For each target the largest of what its edges bring, 0 without edges; [M, F].

    It is not linear: weights of edges do not take part, and it cannot change places with a layer.
    """
    _check(x, matrix.edges.num_sources)
    if is_half(x):  # the largest one is one of them: nothing is rounded
        return spmm_max(x.float(), matrix).to(x.dtype)
    if runs_native(x):
        y: Tensor = _spmm_max(x, matrix.number, matrix.edges.num_targets)[0]
        return y
    targets, sources = endpoints(matrix, x.device)
    index = targets[:, None].expand(-1, x.shape[1])
    # Not from zeros: torch would count them as ties of a maximum that is 0, even if not included.
    lowest = x.new_full((matrix.edges.num_targets, x.shape[1]), float("-inf"))
    most = lowest.scatter_reduce(0, index, x.index_select(0, sources), "amax")
    reached = torch.zeros(matrix.edges.num_targets, dtype=torch.bool, device=x.device)
    return torch.where(reached.index_fill(0, targets, True)[:, None], most, 0.0)
