# SPDX-License-Identifier: Apache-2.0
"""`y = x W_e^T + b_e` for tokens that are sorted by expert, with dense weights.

One native call for all experts where that is faster (`native_products`), else one product of torch
per expert that has tokens, written into its rows of one result. Experts without tokens cost
nothing: not even the zeros of their gradient are written (`gradients`).
`torch.nn.functional.grouped_mm` has no bias, and needs its gradients contiguous.

Legend: S tokens sorted by expert, E experts, O outputs and K inputs of one expert, R = E O rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from gossamer.errors import InputError
from gossamer.ops.experts import native_products
from gossamer.ops.experts.gradients import new_gradient

Part = tuple[slice, slice]


def own_rows(counts: Sequence[int], rows: int) -> Iterator[tuple[int, Part]]:
    """Of every expert that has tokens: its number, its tokens and its rows of the weight."""
    start = 0
    for expert, count in enumerate(counts):
        if count:
            first = expert * rows
            yield expert, (slice(start, start + count), slice(first, first + rows))
        start += count


def grouped_linear(
    x_SK: torch.Tensor,
    weight_RK: torch.Tensor,
    bias_R: torch.Tensor | None,
    counts: Sequence[int],
) -> torch.Tensor:
    """The product of every token with the weight of its expert, [S, O].

    Args:
        x_SK: tokens, those of the first expert first.
        weight_RK: the weights of all experts, behind one another.
        bias_R: or None.
        counts: tokens of each expert.
    """
    if x_SK.ndim != 2 or sum(counts) != len(x_SK) or x_SK.shape[1] != weight_RK.shape[1]:
        raise InputError(
            f"experts: expected {sum(counts)} tokens (those that the counts name) of"
            f" {weight_RK.shape[1]} inputs, got x of shape {list(x_SK.shape)}."
        )
    if len(counts) == 1:
        return linear(x_SK, weight_RK, bias_R)
    device = x_SK.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x_SK, weight_RK = x_SK.to(dtype), weight_RK.to(dtype)
        bias_R = None if bias_R is None else bias_R.to(dtype)
    result: torch.Tensor = _Grouped.apply(  # type: ignore[no-untyped-call]
        x_SK, weight_RK, bias_R, tuple(counts)
    )
    return result


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_SK: torch.Tensor,
        weight_RK: torch.Tensor,
        bias_R: torch.Tensor | None,
        counts: tuple[int, ...],
    ) -> torch.Tensor:
        ctx.save_for_backward(x_SK, weight_RK)
        ctx.counts, ctx.has_bias = counts, bias_R is not None
        rows = len(weight_RK) // len(counts)
        if native_products.is_faster(x_SK, weight_RK, counts):
            return native_products.product(x_SK, weight_RK, bias_R, counts)
        y_SO = x_SK.new_empty(len(x_SK), rows)
        for _, (tokens, own) in own_rows(counts, rows):
            if bias_R is None:
                torch.mm(x_SK[tokens], weight_RK[own].t(), out=y_SO[tokens])
            else:
                torch.addmm(bias_R[own], x_SK[tokens], weight_RK[own].t(), out=y_SO[tokens])
        return y_SO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_SO: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_SK, weight_RK = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        # A gradient that is one number seen many times, as that of a sum, is no matrix yet.
        grad_SO, rows = grad_SO.contiguous(), len(weight_RK) // len(ctx.counts)
        natively = native_products.is_faster(grad_SO, weight_RK, ctx.counts)
        # Sums in bfloat16 are torch's, of wide numbers where its product of narrow ones is slow.
        widens = natively and weight_RK.dtype == torch.bfloat16
        writes = natively and not widens and native_products.can_run(x_SK)
        dx = None
        if needs_x and natively:
            dx = native_products.input_gradient(grad_SO, weight_RK, ctx.counts)
        elif needs_x:
            dx = torch.empty_like(x_SK)
        dweight = new_gradient(weight_RK, ctx.counts) if needs_weight else None
        dbias = grad_SO.new_zeros(len(weight_RK)) if ctx.has_bias else None
        if writes and dweight is not None:
            native_products.weight_gradient(grad_SO, x_SK, dweight, dbias, ctx.counts)
            return dx, dweight, dbias, None
        wide_g, wide_x = (grad_SO.float(), x_SK.float()) if widens else (grad_SO, x_SK)
        for _, (tokens, own) in own_rows(ctx.counts, rows):
            if dx is not None and not natively:
                torch.mm(grad_SO[tokens], weight_RK[own], out=dx[tokens])
            if dweight is not None and widens:
                dweight[own] = torch.mm(wide_g[tokens].t(), wide_x[tokens])
            elif dweight is not None:
                torch.mm(grad_SO[tokens].t(), x_SK[tokens], out=dweight[own])
            if dbias is not None:
                torch.sum(grad_SO[tokens], 0, out=dbias[own])
        return dx, dweight, dbias, None
