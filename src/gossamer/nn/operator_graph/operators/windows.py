# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pooling over images, sequences and volumes.

ONNX pads each side on its own, or as much as it takes to keep the size (`auto_pad`); torch pads
both sides alike. Where they differ, padding is a step of its own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.errors import InputError

_CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_MAX: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_AUTO = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")

Sizes = tuple[int, ...]


def padded(x: Tensor, pads: Sizes, value: float) -> Tensor:
    """`x` with its last dimensions padded: all begins, then all ends."""
    if not any(pads):
        return x
    half = len(pads) // 2
    sides = [side for i in reversed(range(half)) for side in (pads[i], pads[half + i])]
    return F.pad(x, sides, value=value)


def _resolved(
    x: Tensor, auto_pad: str, pads: Sizes | None, kernel: Sizes, strides: Sizes, dilations: Sizes
) -> Sizes:
    if auto_pad not in _AUTO:
        raise InputError(f"auto_pad: {auto_pad!a} is none of {', '.join(_AUTO)}.")
    if auto_pad.startswith("SAME"):
        # All begins, then all ends; the result has ceil(size / stride).
        totals = [
            max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
            for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)
        ]
        less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
        return (*less, *more) if auto_pad == "SAME_UPPER" else (*more, *less)
    return pads if pads is not None and auto_pad == "NOTSET" else (0,) * (2 * len(kernel))


def _window(
    x: Tensor,
    what: str,
    kernel: Sizes,
    auto_pad: str,
    pads: Sizes | None,
    strides: Sizes | None,
    dilations: Sizes | None,
) -> tuple[int, Sizes, Sizes, Sizes]:
    """Dimensions of the images, strides, dilations and pads; what is not given is as ONNX says."""
    rank = x.ndim - 2
    if rank not in _CONV:
        raise InputError(f"{what}: expected 3 to 5 dimensions, got {x.ndim}.")
    ones = (1,) * rank
    strides, dilations = strides or ones, dilations or ones
    return rank, strides, dilations, _resolved(x, auto_pad, pads, kernel, strides, dilations)


def conv(  # noqa: PLR0913 - the operator's own
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sizes | None = None,
    group: int = 1,
    kernel_shape: Sizes | None = None,
    pads: Sizes | None = None,
    strides: Sizes | None = None,
) -> Tensor:
    """The operator Conv."""
    rank, strides, dilations, around = _window(
        x, "Conv", tuple(weight.shape[2:]), auto_pad, pads, strides, dilations
    )
    return _CONV[rank](padded(x, around, 0.0), weight, bias, strides, 0, dilations, group)


def _auto_pad(x: Tensor, *, mode: str, kernel: Sizes, strides: Sizes, dilations: Sizes) -> Tensor:
    """What SAME_UPPER and SAME_LOWER put in front of a convolution."""
    return padded(x, _resolved(x, mode, None, kernel, strides, dilations), 0.0)


def _zero_pad(x: Tensor, *, pads: Sizes) -> Tensor:
    return padded(x, pads, 0.0)


def _max_pool(
    x: Tensor,
    *,
    kernel_shape: Sizes,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sizes | None = None,
    pads: Sizes | None = None,
    storage_order: int = 0,
    strides: Sizes | None = None,
) -> Tensor:
    rank, strides, dilations, around = _window(
        x, "MaxPool", kernel_shape, auto_pad, pads, strides, dilations
    )
    padding = _same_on_both_sides(around, kernel_shape, ceil_mode)
    # Quantised images: 8 bits are exact in float32.
    image = x if x.is_floating_point() else x.float()
    if padding is None:
        image, padding = padded(image, around, float("-inf")), (0,) * rank
    return _MAX[rank](image, kernel_shape, strides, padding, dilations, bool(ceil_mode)).to(x.dtype)


def _average_pool(
    x: Tensor,
    *,
    kernel_shape: Sizes,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sizes | None = None,
    pads: Sizes | None = None,
    strides: Sizes | None = None,
) -> Tensor:
    rank, strides, dilations, around = _window(
        x, "AveragePool", kernel_shape, auto_pad, pads, strides, dilations
    )
    if any(d != 1 for d in dilations):
        raise InputError("AveragePool: dilations other than 1 are not computed.")
    padding = _same_on_both_sides(around, kernel_shape, ceil_mode)
    pool = _AVERAGE[rank]
    if padding is not None:
        return pool(x, kernel_shape, strides, padding, bool(ceil_mode), bool(count_include_pad))
    total = pool(padded(x, around, 0.0), kernel_shape, strides)
    if count_include_pad:
        return total
    return total / pool(padded(torch.ones_like(x[:1, :1]), around, 0.0), kernel_shape, strides)


def _same_on_both_sides(pads: Sizes, kernel: Sizes, ceil_mode: int) -> Sizes | None:
    """Padding torch can do itself: alike on both sides and at most half of the window."""
    half = len(kernel)
    begins, ends = pads[:half], pads[half:]
    if begins == ends and all(0 <= p <= k // 2 for p, k in zip(begins, kernel, strict=True)):
        return begins
    if ceil_mode:
        raise InputError(f"pooling with ceil_mode and the uneven pads {pads} is not computed.")
    return None


WINDOWS: dict[str, Callable[..., Any]] = {
    "AutoPad": _auto_pad,
    "AveragePool": _average_pool,
    "Conv": conv,
    "GlobalAveragePool": lambda x: x.mean(list(range(2, x.ndim)), keepdim=True),
    "GlobalMaxPool": lambda x: x.amax(list(range(2, x.ndim)), keepdim=True),
    "MaxPool": _max_pool,
    "ZeroPad": _zero_pad,
}
