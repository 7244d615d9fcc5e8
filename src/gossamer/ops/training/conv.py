# SPDX-License-Identifier: Apache-2.0
"""A convolution on sparse kernels, forward and backward, whose kept values are differentiable.

The ops are those of `products.py`: conv(x, W(v)), conv^T(g, W(v)) and (dconv/dW)[mask]. Ops take
tensors and numbers, so settings travel as `ConvSettings.numbers`.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from gossamer.errors import InputError
from gossamer.ops.conv import ConvSettings, why_not
from gossamer.ops.onnx_form import is_onnx_export
from gossamer.ops.op_call import call_op, define_op
from gossamer.ops.training import conv_kernels as conv_train
from gossamer.ops.training.linear_kernels import why_unusable
from gossamer.ops.training.products import Products


def _conv_fake(
    x: torch.Tensor, values: torch.Tensor, mask_bits: torch.Tensor, bias: Any, numbers: list[int]
) -> torch.Tensor:
    size = ConvSettings.of_numbers(numbers).out_size((x.shape[2], x.shape[3]))
    return x.new_empty(x.shape[0], mask_bits.shape[0], *size)


@define_op("compact_conv", "compact conv", _conv_fake)
def _conv(
    x: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    bias: torch.Tensor | None,
    numbers: list[int],
) -> torch.Tensor:
    return conv_train.conv(x, values, mask_bits, bias, ConvSettings.of_numbers(numbers))


@define_op(
    "compact_conv_grad_input",
    "compact conv",
    lambda grad, values, mask_bits, numbers, *image: grad.new_empty(len(grad), numbers[0], *image),
)
def _grad_input(
    grad: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    numbers: list[int],
    height: int,
    width: int,
) -> torch.Tensor:
    return conv_train.grad_input(
        grad, values, mask_bits, ConvSettings.of_numbers(numbers), (height, width)
    )


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
    return conv_train.grad_values(grad, x, mask_bits, num_values, ConvSettings.of_numbers(numbers))


Products(
    where="compact conv",
    multiply=lambda x, values, mask_bits, size, numbers: _conv(x, values, mask_bits, None, numbers),
    grad_input=lambda grad, values, mask_bits, size, numbers: _grad_input(
        grad, values, mask_bits, numbers, *size
    ),
    grad_values=_grad_values,
    grad_bias=lambda grad: grad.sum((0, 2, 3)),
    size_of=lambda x: x.shape[2:],
    settings_at=3,
).register(_conv, _grad_input, _grad_values)


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
