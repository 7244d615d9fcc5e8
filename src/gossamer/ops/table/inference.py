# SPDX-License-Identifier: Apache-2.0
"""A table that is ready to be looked up, without gradients; and the list of its kernels."""

from typing import Any

import torch

from gossamer.errors import InputError
from gossamer.ops import _native
from gossamer.ops.addresses import is_watched
from gossamer.ops.calls import define_op
from gossamer.ops.dispatch import Kernel, add_kernels
from gossamer.ops.table.bags import Bags
from gossamer.ops.table.lookup import is_native, pool_by_torch, pool_into
from gossamer.ops.table.quantiser import BITS, Granularity, Rounding
from gossamer.ops.table.rows import Rows


class PackedRows:
    """Looks up bags of one table: `packed(bags) -> [N, D]`. Immutable, for inference.

    Args:
        rows: floats as they are, or codes; checked here once.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._native: _native.Table | None = None
        self._versions: list[tuple[int, object] | None] | None = None
        if not _is_traced():  # the op that is recorded checks when it runs
            rows.check("table")
            self._native = rows.native() if rows.is_native() else None
            self._versions = _versions(rows.data, rows.scales, rows.row_map)

    def is_of(self, *held: torch.Tensor | None) -> bool:
        """Whether it was made of these tensors, as they are now: data, scales and map."""
        return not _is_traced() and self._versions == _versions(*held)

    @property
    def kernel(self) -> str:
        """Its name in the list of kernels."""
        rounding = self.rows.rounding
        return "table_fp32" if rounding is None else f"table_int{rounding.bits}"

    def __call__(self, bags: Bags) -> torch.Tensor:
        """The bags, float32 [N, D]."""
        if _is_traced():
            return _looked_up(self, bags)
        if self._native is None or not is_native(self.rows, bags):
            return pool_by_torch(self.rows, bags)[0]
        out = torch.empty(bags.num_bags, self.rows.width)
        pool_into(self._native, bags, out)
        return out


def _is_traced() -> bool:
    return is_watched() or torch.compiler.is_compiling()


def _versions(*held: torch.Tensor | None) -> list[tuple[int, object] | None]:
    # Tensors of inference mode count no edits: never equal, looked at each time.
    return [
        None if t is None else (t.data_ptr(), object() if t.is_inference() else t._version)
        for t in held
    ]


def _looked_up(packed: PackedRows, bags: Bags) -> torch.Tensor:
    rows = packed.rows
    rounding = rows.rounding
    seen = (0, 0, 0, 0)
    if rounding is not None:
        seen = (rounding.bits, int(rounding.by_row), int(rounding.half), rounding.span)
    tensors = (rows.data, rows.scales, rows.row_map, bags.ids, bags.offsets, bags.weights)
    numbers = (rows.width, bags.bag_size, bags.num_bags, int(bags.mean), bags.padding, *seen)
    y: torch.Tensor = table_lookup(*tensors, list(numbers))
    return y


def _fake(data: torch.Tensor, *rest: Any) -> torch.Tensor:
    numbers = rest[-1]
    return data.new_empty(numbers[2], numbers[0], dtype=torch.float32)


@define_op("table_lookup", "packed table", _fake, has_gradients=False)
def table_lookup(
    data: torch.Tensor,
    scales: torch.Tensor | None,
    row_map: torch.Tensor | None,
    ids: torch.Tensor,
    offsets: torch.Tensor | None,
    weights: torch.Tensor | None,
    numbers: list[int],
) -> torch.Tensor:
    """A call of PackedRows as an op that torch.compile, export and tracers can see."""
    width, bag_size, num_bags, mean, padding, bits, by_row, half, span = numbers
    shared: Granularity = "span" if span else "row" if by_row else "table"
    rounding = Rounding(bits, shared, bool(half), span) if bits else None
    rows = Rows(data, width, rounding, scales, row_map)
    bags = Bags(ids, offsets, bag_size, num_bags, weights, bool(mean), padding)
    return PackedRows(rows)(bags)


def _kernel(name: str, bits: int | None) -> Kernel:
    def accepts(problem: Any) -> bool:
        rows = problem.matrix
        if not isinstance(rows, Rows):
            raise InputError("table kernels: a problem is about the Rows of a table.")
        return (rows.rounding.bits if rows.rounding else None) == bits

    precision = "fp32" if bits is None else "int8" if bits == 8 else "int4"
    return Kernel(name, lambda problem: PackedRows(problem.matrix), accepts, precision)


add_kernels(
    "table", (_kernel("table_fp32", None), *(_kernel(f"table_int{bits}", bits) for bits in BITS))
)
