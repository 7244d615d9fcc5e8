# SPDX-License-Identifier: Apache-2.0
"""Operators that move, cut and measure tensors: Reshape, Slice, Gather and their kin."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.errors import InputError

# A tensor made from numbers alone (ConstantOfShape, Range, Tile, Pad) may not be larger: a few
# bytes of a file would ask for all memory.
MAX_MADE = 2**31


def check_made(sizes: Sequence[int], what: str) -> None:
    """Refuse shapes with negative sizes or more than MAX_MADE elements."""
    if any(size < 0 for size in sizes) or math.prod(sizes) > MAX_MADE:
        raise InputError(
            f"{what}: asks for a tensor of shape {list(sizes)}; sizes must be 0 or more and their"
            f" product at most {MAX_MADE}."
        )


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that tensors of these shapes have together."""
    return tuple(torch.broadcast_shapes(*map(tuple, shapes)))  # type: ignore[no-untyped-call]


def _shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    return torch.tensor(x.shape[start:end], dtype=torch.int64)


def _reshape(x: Tensor, shape: Tensor, /, *, allowzero: int = 0) -> Tensor:
    sizes = shape.tolist()
    if not allowzero and 0 in sizes:
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    if not -x.ndim <= axis <= x.ndim:
        raise InputError(f"Flatten: axis {axis} is out of range for {x.ndim} dimensions.")
    axis += x.ndim if axis < 0 else 0
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _transpose(x: Tensor, *, perm: tuple[int, ...] | None = None) -> Tensor:
    return x.permute(tuple(reversed(range(x.ndim))) if perm is None else perm)


def _axes(given: Tensor | None, axes: tuple[int, ...] | None) -> list[int] | None:
    return given.tolist() if given is not None else None if axes is None else list(axes)


def _squeeze(
    x: Tensor, given: Tensor | None = None, /, *, axes: tuple[int, ...] | None = None
) -> Tensor:
    chosen = _axes(given, axes)
    if chosen is None:
        return x.squeeze()
    for axis in chosen:
        if x.shape[axis] != 1:
            raise InputError(f"Squeeze: dimension {axis} of {list(x.shape)} is not 1.")
    return x.squeeze(tuple(chosen))


def _unsqueeze(
    x: Tensor, given: Tensor | None = None, /, *, axes: tuple[int, ...] | None = None
) -> Tensor:
    chosen = _axes(given, axes) or []
    rank = x.ndim + len(chosen)
    # Axes count in the result, so they are made in ascending order.
    for axis in sorted(axis + rank if axis < 0 else axis for axis in chosen):
        x = x.unsqueeze(axis)
    return x


def _concat(first: Tensor, /, *others: Tensor, axis: int) -> Tensor:
    return torch.cat((first, *others), dim=axis)


def _split(
    x: Tensor,
    sizes: Tensor | None = None,
    /,
    *,
    axis: int = 0,
    split: tuple[int, ...] | None = None,
    num_outputs: int = 1,
) -> tuple[Tensor, ...]:
    chosen = _axes(sizes, split)
    if chosen is None:
        # Equal parts; the last one is smaller where it does not come out even.
        part = -(-x.shape[axis] // num_outputs)
        chosen = [part] * (num_outputs - 1)
        chosen.append(x.shape[axis] - sum(chosen))
    if len(chosen) != num_outputs:
        raise InputError(f"Split: {len(chosen)} sizes for {num_outputs} outputs.")
    return torch.split(x, chosen, dim=axis)


def _slice(
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
    /,
) -> Tensor:
    begin, end = starts.tolist(), ends.tolist()
    along = list(range(len(begin))) if axes is None else axes.tolist()
    stride = [1] * len(begin) if steps is None else steps.tolist()
    for first, last, axis, step in zip(begin, end, along, stride, strict=True):
        # Python's slices clamp as ONNX does; torch knows no negative steps.
        low, high, step = slice(first, last, step).indices(x.shape[axis])
        if step > 0:
            index = [slice(None)] * x.ndim
            index[axis] = slice(low, max(low, high), step)
            x = x[tuple(index)]
        else:
            x = x.index_select(axis, torch.arange(low, min(low, high), step))
    return x


def _gather(x: Tensor, indices: Tensor, /, *, axis: int = 0) -> Tensor:
    axis += x.ndim if axis < 0 else 0
    size = x.shape[axis]
    if not indices.ndim:  # a size of a shape, most of the time
        place = int(indices)
        _check_places(place, place, size)
        return x.select(axis, place)
    flat = indices.reshape(-1)
    if flat.numel():
        low, high = (int(bound) for bound in flat.aminmax())
        _check_places(low, high, size)
        flat = torch.where(flat < 0, flat + size, flat) if low < 0 else flat
    found = x.index_select(axis, flat)
    return found.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


def _check_places(low: int, high: int, size: int) -> None:
    if not -size <= low <= high < size:
        raise InputError(
            f"Gather: indices from {low} to {high}, but the dimension has {size} entries."
        )


def _gather_nd(x: Tensor, indices: Tensor, /, *, batch_dims: int = 0) -> Tensor:
    depth = indices.shape[-1]
    if not 0 <= batch_dims < min(x.ndim, indices.ndim) or batch_dims + depth > x.ndim:
        raise InputError(
            f"GatherND: {depth} indices and {batch_dims} batch dimensions do not fit a tensor of"
            f" {x.ndim} dimensions."
        )
    batch = [
        torch.arange(size).reshape([-1] + [1] * (indices.ndim - 2 - i))
        for i, size in enumerate(x.shape[:batch_dims])
    ]
    return x[(*batch, *indices.unbind(-1))]


def _expand(x: Tensor, shape: Tensor, /) -> Tensor:
    sizes = broadcast(x.shape, shape.tolist())
    check_made(sizes, "Expand")
    return x.expand(sizes)


def _constant_of_shape(shape: Tensor, value: Tensor | None = None, /) -> Tensor:
    sizes = shape.tolist()
    check_made(sizes, "ConstantOfShape")
    one = torch.zeros(()) if value is None else value.reshape(())
    return one.expand(sizes)


def _range(start: Tensor, limit: Tensor, delta: Tensor, /) -> Tensor:
    first, last, step = start.item(), limit.item(), delta.item()
    if step == 0:
        raise InputError("Range: delta is 0.")
    count = max(0, math.ceil((last - first) / step))
    check_made([count], "Range")
    return first + step * torch.arange(count, dtype=start.dtype)


def _tile(x: Tensor, repeats: Tensor, /) -> Tensor:
    times = repeats.tolist()
    check_made([size * n for size, n in zip(x.shape, times, strict=True)], "Tile")
    return x.repeat(times)


def _pad(
    x: Tensor,
    pads: Tensor,
    value: Tensor | None = None,
    axes: Tensor | None = None,
    /,
    *,
    mode: str = "constant",
) -> Tensor:
    amounts = pads.tolist()
    along = list(range(x.ndim)) if axes is None else [a % x.ndim for a in axes.tolist()]
    count, around = len(along), [(0, 0)] * x.ndim
    for axis, before, after in zip(along, amounts[:count], amounts[count:], strict=True):
        around[axis] = before, after
    check_made([n + sum(sides) for n, sides in zip(x.shape, around, strict=True)], "Pad")
    if mode == "constant":
        amounts = [side for sides in reversed(around) for side in sides]
        return F.pad(x, amounts, value=0.0 if value is None else value.item())
    for axis in along:
        before, after = around[axis]
        places = torch.arange(-before, x.shape[axis] + after)
        x = x.index_select(axis, _mirrored(places, x.shape[axis], mode))
    return x


def _mirrored(places: Tensor, size: int, mode: str) -> Tensor:
    if mode == "edge":
        return places.clamp(0, size - 1)
    if mode == "wrap":
        return places % size
    if mode != "reflect":
        raise InputError(f"Pad: mode {mode!a} is none of constant, edge, reflect, wrap.")
    period = max(1, 2 * (size - 1))
    folded = places % period
    return torch.where(folded < size, folded, period - folded)


def _trilu(x: Tensor, k: Tensor | None = None, /, *, upper: int = 1) -> Tensor:
    diagonal = 0 if k is None else int(k)
    return torch.triu(x, diagonal) if upper else torch.tril(x, diagonal)


def _cumulative_sum(x: Tensor, axis: Tensor, /, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    dim = int(axis)
    x = x.flip(dim) if reverse else x
    total = x.cumsum(dim, dtype=x.dtype)
    total = total - x if exclusive else total
    return total.flip(dim) if reverse else total


SHAPING: dict[str, Callable[..., Any]] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumulative_sum,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": lambda x, indices, *, axis=0: x.gather(
        axis, torch.where(indices < 0, indices + x.shape[axis], indices)
    ),
    "GatherND": _gather_nd,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": lambda x: torch.tensor(x.numel(), dtype=torch.int64),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
