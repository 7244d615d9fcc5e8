# SPDX-License-Identifier: Apache-2.0
"""Operators on 8-bit integers with scales and zero points.

Products of integers are summed in float64, which holds every sum of them exactly.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.errors import InputError
from gossamer.nn.operator_graph.operators.windows import conv

_QUANTISED = (torch.uint8, torch.int8, torch.int16, torch.int32)


def along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    """A scale or zero point per entry of `axis`, shaped to broadcast; one of all stays so."""
    if values.numel() == 1:
        return values.reshape(())
    if values.ndim != 1 or not -x.ndim <= axis < x.ndim or values.numel() != x.shape[axis]:
        raise InputError(
            f"scales of shape {list(values.shape)} fit neither the tensor {list(x.shape)} nor its"
            f" axis {axis}; scales per block are not computed."
        )
    sizes = [1] * x.ndim
    sizes[axis] = -1
    return values.reshape(sizes)


def quantise(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    /,
    *,
    axis: int = 1,
    saturate: int = 1,
) -> Tensor:
    """The operator QuantizeLinear: round half to even, shift, clamp."""
    return _codes(x, scale, zero, axis).to(torch.uint8 if zero is None else zero.dtype)


def _codes(x: Tensor, scale: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    kind = torch.uint8 if zero is None else zero.dtype
    if kind not in _QUANTISED:
        raise InputError(f"QuantizeLinear: the zero point is {kind}, expected one of {_QUANTISED}.")
    bounds = torch.iinfo(kind)
    codes = torch.round(x / along(scale, x, axis))
    if zero is not None:
        codes = codes + along(zero, x, axis).to(codes.dtype)
    return codes.clamp(bounds.min, bounds.max)


def dequantise(x: Tensor, scale: Tensor, zero: Tensor | None = None, /, *, axis: int = 1) -> Tensor:
    """The operator DequantizeLinear."""
    if x.dtype not in _QUANTISED:
        raise InputError(f"DequantizeLinear: the input is {x.dtype}, expected one of {_QUANTISED}.")
    codes = x.to(scale.dtype)
    if zero is not None:
        codes = codes - along(zero, x, axis).to(scale.dtype)
    return codes * along(scale, x, axis)


def _quantise_dequantise(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    /,
    *,
    axis: int = 1,
    rounding: int = 1,
) -> Tensor:
    """Both in one step; without rounding only the range is kept, which may stand for a ReLU."""
    steps = along(scale, x, axis)
    shift = 0.0 if zero is None else along(zero, x, axis).to(x.dtype)
    if rounding:
        return (_codes(x, scale, zero, axis) - shift) * steps
    bounds = torch.iinfo(torch.uint8 if zero is None else zero.dtype)
    return torch.minimum(
        torch.maximum(x, (bounds.min - shift) * steps), (bounds.max - shift) * steps
    )


def _dynamic(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The operator DynamicQuantizeLinear: uint8 codes, scale, zero point of this tensor."""
    low = torch.minimum(x.amin(), x.new_zeros(()))
    high = torch.maximum(x.amax(), x.new_zeros(()))
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.round((0 - low / scale).clamp(0, 255)).to(torch.uint8)
    return quantise(x, scale, zero), scale, zero


def _shifted(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    wide = x.double()
    return wide if zero is None else wide - along(zero, x, axis).double()


def _matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None, /
) -> Tensor:
    return (_shifted(a, a_zero, -2) @ _shifted(b, b_zero, -1)).to(torch.int32)


def conv_integer(
    x: Tensor,
    weight: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    /,
    **window: Any,
) -> Tensor:
    """The operator ConvInteger, whose attributes are those of Conv."""
    return conv(_shifted(x, x_zero, 1), _shifted(weight, w_zero, 0), **window).to(torch.int32)


QUANTISED: dict[str, Callable[..., Any]] = {
    "DequantizeLinear": dequantise,
    "DynamicQuantizeDequantize": lambda x: dequantise(*_dynamic(x)),
    "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": _matmul_integer,
    "QuantizeDequantize": _quantise_dequantise,
    "QuantizeLinear": quantise,
}
