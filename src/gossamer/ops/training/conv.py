# SPDX-License-Identifier: Apache-2.0
"""A convolution on sparse kernels, forward and backward, whose kept values are differentiable.

Three ops closed under differentiation, as in ops/training/linear.py:

    L(x, v) = conv(x, W(v))       dx = I(g, v)     dv = V(g, x)
    I(g, v) = conv^T(g, W(v))     dg = L(h, v)     dv = V(g, h)
    V(g, x) = (dconv/dW)[mask]    dg = L(x, u)     dx = I(g, u)

Ops take tensors and numbers, so settings travel as `ConvSettings.numbers`.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from gossamer.errors import InputError
from gossamer.ops.conv.fp32 import why_not
from gossamer.ops.conv.settings import ConvSettings
from gossamer.ops.onnx_form import is_onnx_export
from gossamer.ops.op_call import call_op, op_body
from gossamer.ops.out_of_memory import names_memory
from gossamer.ops.training import conv_kernels as conv_train
from gossamer.ops.training.linear_kernels import why_unusable
from gossamer.ops.training.wanted_gradients import wanted_gradients


@torch.library.custom_op("gossamer::compact_conv", mutates_args=())
@op_body("compact conv")
def _conv(
    x: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    bias: torch.Tensor | None,
    numbers: list[int],
) -> torch.Tensor:
    return conv_train.conv(x, values, mask_bits, bias, ConvSettings.of_numbers(numbers))


@torch.library.custom_op("gossamer::compact_conv_grad_input", mutates_args=())
@op_body("compact conv")
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


@torch.library.custom_op("gossamer::compact_conv_grad_values", mutates_args=())
@op_body("compact conv")
def _grad_values(
    grad: torch.Tensor,
    x: torch.Tensor,
    mask_bits: torch.Tensor,
    num_values: int,
    numbers: list[int],
) -> torch.Tensor:
    return conv_train.grad_values(grad, x, mask_bits, num_values, ConvSettings.of_numbers(numbers))


@_conv.register_fake
def _(
    x: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    bias: torch.Tensor | None,
    numbers: list[int],
) -> torch.Tensor:
    size = ConvSettings.of_numbers(numbers).out_size((x.shape[2], x.shape[3]))
    return x.new_empty(x.shape[0], mask_bits.shape[0], *size)


@_grad_input.register_fake
def _(
    grad: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    numbers: list[int],
    height: int,
    width: int,
) -> torch.Tensor:
    return grad.new_empty(grad.shape[0], numbers[0], height, width)


@_grad_values.register_fake
def _(
    grad: torch.Tensor,
    x: torch.Tensor,
    mask_bits: torch.Tensor,
    num_values: int,
    numbers: list[int],
) -> torch.Tensor:
    return grad.new_empty(num_values)


def _save_conv(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, values, mask_bits, _, numbers = inputs
    needs_x, needs_values = ctx.needs_input_grad[:2]
    ctx.save_for_backward(x if needs_values else None, values if needs_x else None, mask_bits)
    ctx.image, ctx.num_values, ctx.numbers = x.shape[2:], values.numel(), numbers


@names_memory("compact conv")
def _conv_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, values, mask_bits = ctx.saved_tensors
    needs_x, needs_values, _, needs_bias = wanted_gradients(ctx)[:4]
    dx = dvalues = None
    if needs_x:
        dx = _grad_input(grad, values, mask_bits, ctx.numbers, *ctx.image)
    if needs_values:
        dvalues = _grad_values(grad, x, mask_bits, ctx.num_values, ctx.numbers)
    return dx, dvalues, None, grad.sum((0, 2, 3)) if needs_bias else None, None


def _save_grad_input(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.numbers = inputs[3]


def _grad_input_backward(ctx: Any, h: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    grad, values, mask_bits = ctx.saved_tensors
    needs_grad, needs_values = wanted_gradients(ctx)[:2]
    dgrad = dvalues = None
    if needs_grad:
        dgrad = _conv(h, values, mask_bits, None, ctx.numbers)
    if needs_values:
        dvalues = _grad_values(grad, h, mask_bits, values.numel(), ctx.numbers)
    return dgrad, dvalues, None, None, None, None


def _save_grad_values(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.numbers = inputs[4]


def _grad_values_backward(ctx: Any, u: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    grad, x, mask_bits = ctx.saved_tensors
    needs_grad, needs_x = wanted_gradients(ctx)[:2]
    dgrad = dx = None
    if needs_grad:
        dgrad = _conv(x, u, mask_bits, None, ctx.numbers)
    if needs_x:
        dx = _grad_input(grad, u, mask_bits, ctx.numbers, *x.shape[2:])
    return dgrad, dx, None, None, None


_conv.register_autograd(_conv_backward, setup_context=_save_conv)
_grad_input.register_autograd(_grad_input_backward, setup_context=_save_grad_input)
_grad_values.register_autograd(_grad_values_backward, setup_context=_save_grad_values)


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
