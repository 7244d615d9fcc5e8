# SPDX-License-Identifier: Apache-2.0
"""A convolution on sparse kernels, forward and backward, whose kept values are differentiable.

The ops are those of `products.py`: conv(x, W(v)), conv^T(g, W(v)) and (dconv/dW)[mask]. Ops take
tensors and numbers, so settings travel as `ConvSettings.numbers`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from gossamer.errors import InputError
from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.calls import call_op, define_op, is_onnx_export
from gossamer.ops.conv import ConvSettings, why_not
from gossamer.ops.training.linear_kernels import why_unusable
from gossamer.ops.training.products import Products

_WHERE = "training kernels"


def _run(
    kernel: Callable[..., None],
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    settings: ConvSettings,
    image: Sequence[int],
    **operands: torch.Tensor | None,
) -> None:
    """Call a kernel with tensors under their names; results are contiguous as they were made.

    As in `linear_kernels.py` nothing is cached between calls. Images are float32 [N, C, H, W] on
    the CPU; settings are those that `ops.conv.why_not` has nothing against.
    """
    held = {name: None if t is None else t.contiguous() for name, t in operands.items()}
    values = values.contiguous()
    kernel(
        address(values, _WHERE),
        values.numel(),
        mask_bits.contiguous().numpy(),
        columns=settings.matrix_shape[1],
        images=next(len(t) for t in held.values() if t is not None),
        **settings.geometry((image[0], image[1])),
        **{name: address(t, _WHERE) for name, t in held.items()},
    )


def _result(x: torch.Tensor, *inputs: Any) -> torch.Tensor:
    """Room for the convolution of x; the last input are the numbers of its settings."""
    settings = ConvSettings.of_numbers(inputs[-1])
    return x.new_empty(len(x), settings.out_channels, *settings.out_size((x.shape[2], x.shape[3])))


@define_op("compact_conv", "compact conv", _result)
def _conv(
    x: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    bias: torch.Tensor | None,
    numbers: list[int],
) -> torch.Tensor:
    """`conv2d(x, W) + b`."""
    y, settings = _result(x, numbers), ConvSettings.of_numbers(numbers)
    _run(_native.train_conv, values, mask_bits, settings, x.shape[2:], x=x, bias=bias, y=y)
    return y


@define_op(
    "compact_conv_grad_input",
    "compact conv",
    lambda grad, values, mask_bits, height, width, numbers: grad.new_empty(
        len(grad), numbers[0], height, width
    ),
)
def _grad_input(
    grad: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    height: int,
    width: int,
    numbers: list[int],
) -> torch.Tensor:
    """The gradient of images of this size from that of the output."""
    settings, image = ConvSettings.of_numbers(numbers), (height, width)
    dx = grad.new_empty(len(grad), settings.in_channels, *image)
    _run(_native.train_conv_grad_input, values, mask_bits, settings, image, grad=grad, dx=dx)
    return dx


@define_op(
    "compact_conv_grad_values",
    "compact conv",
    lambda grad, x, mask_bits, num_values, numbers: grad.new_empty(num_values),
)
def _grad_values(
    grad: torch.Tensor,
    x: torch.Tensor,
    mask_bits: torch.Tensor,
    num_values: int,
    numbers: list[int],
) -> torch.Tensor:
    """The gradient of the kept values, [n]."""
    values, settings = x.new_empty(num_values), ConvSettings.of_numbers(numbers)
    _run(_native.train_conv_grad_values, values, mask_bits, settings, x.shape[2:], grad=grad, x=x)
    return values


Products(
    where="compact conv",
    multiply=lambda x, values, mask_bits, numbers: _conv(x, values, mask_bits, None, numbers),
    grad_input=_grad_input,
    grad_values=_grad_values,
    grad_bias=lambda grad: grad.sum((0, 2, 3)),
    size_of=lambda x: x.shape[2:],
).register(_conv)


def why_dense(
    x: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None, settings: ConvSettings
) -> str | None:
    """Why the kernels cannot take this call; None if they can."""
    if is_onnx_export() or not isinstance(x, torch.Tensor):
        return "ONNX and torch.fx have dense convolutions only"
    if torch.is_autocast_enabled(x.device.type):
        return f"training kernels are float32, autocast wants {torch.get_autocast_dtype('cpu')}"
    return why_unusable(x, values, bias) or why_not(kernel_settings(settings))


def compact_conv(
    x: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    bias: torch.Tensor | None,
    settings: ConvSettings,
) -> torch.Tensor:
    """The convolution of x [N, C, H, W] or [C, H, W] where `why_dense` has no objection.

    Padding that is uneven or not of zeros is put around x first.
    """
    if x.ndim not in (3, 4) or x.shape[-3] != settings.in_channels:
        channels = settings.in_channels
        raise InputError(
            f"compact conv: x must be [N, {channels}, H, W] or [{channels}, H, W], got"
            f" {list(x.shape)}."
        )
    padded = kernel_settings(settings)
    if padded is not settings:
        height, width = settings.sides()
        mode = "constant" if settings.padding_mode == "zeros" else settings.padding_mode
        x = F.pad(x, (*width, *height), mode=mode)
    image = (x.shape[-2], x.shape[-1])
    if 0 in image or min(padded.out_size(image)) < 1:
        raise InputError(
            f"compact conv: images of {image[0]} x {image[1]} are too small for a kernel of"
            f" {padded.kernel_size} with padding {padded.padding} and dilation {padded.dilation}."
        )
    images = x if x.ndim == 4 else x[None]
    y = call_op(_conv, "compact conv", images, values, mask_bits, bias, padded.numbers())
    return y if x.ndim == 4 else y[0]


def kernel_settings(settings: ConvSettings) -> ConvSettings:
    """Those that the kernels run with: without padding where x is padded before."""
    if settings.even_padding() is not None:
        return settings
    return replace(settings, padding=(0, 0), padding_mode="zeros")
