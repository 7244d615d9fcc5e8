# SPDX-License-Identifier: Apache-2.0
"""Rows of a table, gathered, dequantised and pooled: native on the CPU, torch elsewhere.

Each bag adds its rows in the order of its ids, so results do not depend on the kernels or on the
number of threads.

Legend: V rows, D columns (width), P positions, N bags.
"""

from typing import NamedTuple

import torch

from gossamer.errors import InputError
from gossamer.ops import _native
from gossamer.ops.addresses import address, runs_native
from gossamer.ops.kernels import active_kernels
from gossamer.ops.table.bags import Bags
from gossamer.ops.table.quantiser import top_of_bits
from gossamer.ops.table.rows import Rows

_WHERE = "table"


class Seen(NamedTuple):
    """What rounding on the way has seen.

    Attributes:
        top: the largest magnitude among the numbers that were looked up; NaN if there was one.
        clipped: how many were beyond the largest code.
    """

    top: float = 0.0
    clipped: int = 0


def pool(rows: Rows, bags: Bags) -> tuple[torch.Tensor, Seen]:
    """The bags [N, D], and what rounding saw; no gradients.

    Raises:
        InputError: an id is outside of the table; nothing was read then.
    """
    if not is_native(rows, bags):
        return pool_by_torch(rows, bags)
    out = torch.empty(bags.num_bags, rows.width)
    return out, pool_into(rows.native(), bags, out)


def is_native(rows: Rows, bags: Bags) -> bool:
    """Whether the kernels take this call."""
    weights = bags.weights
    return (
        rows.is_native()
        and (weights is None or weights.dtype is torch.float32)
        and runs_native(bags.ids, bags.offsets, weights)
    )


def pool_into(table: _native.Table, bags: Bags, out: torch.Tensor) -> Seen:
    """The same into a float32 matrix whose rows are contiguous."""
    held = bags.native()
    target = (address(out, _WHERE), out.stride(0), active_kernels())
    try:
        top, clipped = _native.table_pool(table, held, *target)
    except IndexError as error:
        raise InputError(f"table: {error}.") from error
    return Seen(top_of_bits(top), clipped)


def pool_by_torch(rows: Rows, bags: Bags) -> tuple[torch.Tensor, Seen]:
    """The same for any dtype and device, in plain torch."""
    check_ids(rows, bags)
    bag_of, counts = bags.bag_of(), bags.counted()
    counts &= bag_of < bags.num_bags
    rows_P, bag_of = rows.rows_of(bags.ids[counts]), bag_of[counts]
    unique, inverse = torch.unique(rows_P, return_inverse=True)
    values_PD = rows.floats(unique).index_select(0, inverse)
    seen = _seen(rows, unique, inverse)
    if bags.weights is not None:
        values_PD = values_PD * bags.weights[counts].unsqueeze(1)
    out = values_PD.new_zeros(bags.num_bags, rows.width).index_add_(0, bag_of, values_PD)
    if bags.mean:
        sizes = torch.bincount(bag_of, minlength=bags.num_bags).clamp(min=1)
        out = out / sizes.to(out.dtype).unsqueeze(1)
    return out, seen


def check_ids(rows: Rows, bags: Bags) -> None:
    """Raise InputError if an id is outside of the table."""
    wrong = (bags.ids < 0) | (bags.ids >= rows.num_ids)
    if bool(wrong.any()):
        position = int(wrong.nonzero()[0])
        raise InputError(
            f"table: id {int(bags.ids[position])} at position {position} is outside of"
            f" [0, {rows.num_ids})."
        )


def _seen(rows: Rows, unique: torch.Tensor, inverse: torch.Tensor) -> Seen:
    rounding = rows.rounding
    if rounding is None or rows.is_coded or not len(unique):
        return Seen()
    data = rows.data.detach().index_select(0, unique)
    top = float(data.abs().amax()) if data.numel() else 0.0
    if rows.scales is None:
        return Seen(top)
    in_codes = data * (torch.ones_like(rows.scales) / rows.scales)
    within = (in_codes >= rounding.lowest - 0.5) & (in_codes < rounding.highest + 0.5)
    clipped = (~within).sum(1).index_select(0, inverse)
    return Seen(top, int(clipped.sum()))
