# SPDX-License-Identifier: Apache-2.0
"""Lookups that are trained through. Gradients are of the rows that were looked up, each once.

Positions are grouped by row (a stable sort), each row adds its gradients in the order of its
positions and belongs to one thread: equal results for any number of threads, no atomics. Rounding
passes the gradient straight through. Who wants to update rows inside the backward, while they are
in the cache, leaves a `RowSink` on the Parameter; then no gradient is left there.

Legend: V rows, D columns (width), U rows that were looked up, N bags.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version

from gossamer.errors import InputError
from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.kernels import active_kernels
from gossamer.ops.table.bags import Bags
from gossamer.ops.table.lookup import Seen, is_native, pool
from gossamer.ops.table.rows import Rows

_WHERE = "table"


@dataclass(frozen=True, eq=False)
class RowGradient:
    """The gradient of the rows that were looked up.

    Attributes:
        rows: int64 [U], ascending, each once.
        values: float32 [U, D].
    """

    rows: torch.Tensor
    values: torch.Tensor

    def sparse(self, shape: torch.Size) -> torch.Tensor:
        """As a coalesced sparse tensor."""
        return torch.sparse_coo_tensor(
            self.rows.unsqueeze(0), self.values, shape, is_coalesced=True, check_invariants=False
        )

    @classmethod
    def of_sparse(cls, gradient: torch.Tensor) -> "RowGradient":
        """The way back; rows that were added up twice become one."""
        # Autograd forgets that a gradient is coalesced; a look is cheaper than a sort.
        rows = gradient._indices()[0]
        if not bool((rows[1:] > rows[:-1]).all()):
            gradient = gradient.coalesce()
            rows = gradient._indices()[0]
        return cls(rows.contiguous(), gradient._values().contiguous())


class Backward:
    """A batch on its way back: who wants the gradient asks for it, or updates rows at once."""

    def __init__(self, rows: Rows, bags: Bags, grad_ND: torch.Tensor) -> None:
        self.rows, self._bags, self._grad = rows, bags, grad_ND

    def gradient(self) -> RowGradient:
        """The gradient of the rows that were looked up."""
        if not self._is_native():
            return gradient_by_torch(self.rows, self._bags, self._grad)
        grad = self._grad if self._grad.stride(1) == 1 else self._grad.contiguous()
        table, bags = self.rows.native(rounds=False), self._bags.native()
        groups = _native.table_groups(table, bags)
        rows = torch.empty(groups.num_rows, dtype=torch.int64)
        values = torch.empty(groups.num_rows, self.rows.width)
        groups.copy_rows(address(rows, _WHERE))
        start = (address(grad, _WHERE), grad.stride(0), address(values, _WHERE))
        _native.table_gradient(table, groups, bags, *start, active_kernels())
        return RowGradient(rows, values)

    def update(self, step: _native.RowStep) -> None:
        """Move the rows that were looked up, without a gradient in between."""
        if not self._is_native():
            raise InputError("table: rows are updated inside the backward on the CPU, in float32.")
        grad = self._grad if self._grad.stride(1) == 1 else self._grad.contiguous()
        table, bags = self.rows.native(rounds=False), self._bags.native()
        groups = _native.table_groups(table, bags)
        start = (address(grad, _WHERE), grad.stride(0), step, active_kernels())
        _native.table_update(table, groups, bags, *start)
        increment_version(self.rows.data)

    def _is_native(self) -> bool:
        return is_native(self.rows, self._bags) and self._grad.dtype is torch.float32


Take = Callable[[torch.Tensor, Backward], None]


class RowSink:
    """What an optimizer leaves on a Parameter to get the rows inside the backward.

    It holds the optimizer weakly, and a copy or a file of the Parameter holds none.

    Args:
        take: a method that is called with the Parameter and the `Backward`.
    """

    def __init__(self, take: Take | None = None) -> None:
        self._take = None if take is None else weakref.WeakMethod(take)

    def __reduce__(self) -> tuple[type["RowSink"], tuple[()]]:
        return RowSink, ()

    def leave_on(self, param: torch.Tensor) -> None:
        """Let rows of this table be updated inside the backward."""
        param.__dict__["row_sink"] = self

    def find(self) -> Take | None:
        """The method, while its optimizer is there."""
        return None if self._take is None else self._take()


def row_gradient(param: torch.Tensor, *, take: bool) -> tuple[Rows, RowGradient] | None:
    """The gradient of codes, which have no `.grad`, and of what; None if there was no backward.

    Args:
        param: the codes.
        take: it is gone afterwards. Otherwise its values may be changed in place.
    """
    held: list[tuple[Rows, RowGradient]] = param.__dict__.get("row_gradients", [])
    if not held:
        return None
    rows = held[0][0]
    if len(held) > 1:
        shape = torch.Size((len(rows.data), rows.width))
        total = held[0][1].sparse(shape)
        for _, gradient in held[1:]:
            total = total + gradient.sparse(shape)
        held[:] = [(rows, RowGradient.of_sparse(total))]
    return held.pop() if take else held[0]


class _Lookup(torch.autograd.Function):
    """`pool` with a gradient for the table and for the weights of positions.

    `anchor` is the table itself, or, for codes, a number that makes autograd call the backward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        weights: torch.Tensor | None,
        rows: Rows,
        bags: Bags,
        counts: Bags,
        tell: Callable[[Seen], None],
    ) -> torch.Tensor:
        y, seen = pool(rows, bags)
        tell(seen)
        ctx.rows, ctx.bags, ctx.counts = rows, bags, counts
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows: Rows = ctx.rows
        of_table = of_weights = None
        if ctx.needs_input_grad[0]:
            of_table = _hand_over(rows, Backward(rows, ctx.counts, grad_ND))
        if ctx.needs_input_grad[1]:
            bags: Bags = ctx.bags
            each_PD, _ = pool(rows, Bags.single(bags.ids, bags.padding))
            bag_of = bags.bag_of()
            inside = bag_of < bags.num_bags
            grad_PD = grad_ND.index_select(0, bag_of.clamp(max=max(bags.num_bags - 1, 0)))
            of_weights = (each_PD * grad_PD).sum(1) * (inside & bags.counted())
        return of_table, of_weights, None, None, None, None


def _hand_over(rows: Rows, backward: Backward) -> torch.Tensor | None:
    """The gradient to autograd, or to whoever asked for it; None for codes."""
    sink = rows.data.__dict__.get("row_sink")
    take = None if sink is None else sink.find()
    if take is not None:
        take(rows.data, backward)
    elif rows.is_coded:
        found = rows.data.__dict__.setdefault("row_gradients", [])
        found.append((rows, backward.gradient()))
    else:
        return backward.gradient().sparse(rows.data.shape)
    return None


# As torch.compiler.disable, which imports the compiler at once: a second of every start.
@_disable_dynamo
def trained_pool(
    rows: Rows, bags: Bags, tell: Callable[[Seen], None], counts: Bags | None = None
) -> torch.Tensor:
    """The bags [N, D], differentiable by the table (`rows.data`) and by `bags.weights`.

    Args:
        rows: floats that are a Parameter, or codes.
        bags: the batch.
        tell: is called with what rounding saw.
        counts: the bags that give gradients, where padding counts in the forward only.
    """
    anchor = torch.zeros((), requires_grad=True) if rows.is_coded else rows.data
    y: torch.Tensor = _Lookup.apply(  # type: ignore[no-untyped-call]
        anchor, bags.weights, rows, bags, counts or bags, tell
    )
    return y


def gradient_by_torch(rows: Rows, bags: Bags, grad_ND: torch.Tensor) -> RowGradient:
    """The same for any dtype and device, in plain torch."""
    bag_of, counts = bags.bag_of(), bags.counted()
    counts &= bag_of < bags.num_bags
    rows_P, bag_P = rows.rows_of(bags.ids[counts]), bag_of[counts]
    unique, inverse = torch.unique(rows_P, return_inverse=True)
    grad_PD = grad_ND.index_select(0, bag_P)
    if bags.weights is not None:
        grad_PD = grad_PD * bags.weights[counts].detach().unsqueeze(1)
    if bags.mean:
        sizes = torch.bincount(bag_P, minlength=bags.num_bags).clamp(min=1).to(grad_ND.dtype)
        grad_PD = grad_PD * (torch.ones_like(sizes) / sizes).index_select(0, bag_P).unsqueeze(1)
    values = grad_ND.new_zeros(len(unique), rows.width).index_add_(0, inverse, grad_PD)
    return RowGradient(unique, values)
