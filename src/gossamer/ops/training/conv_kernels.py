# SPDX-License-Identifier: Apache-2.0
"""The three products of a training step of a sparse convolution, from values and mask bits.

As in ops/training/linear_kernels.py nothing is cached between calls. Images are float32 [N, C, H,
W] on the CPU; settings are those that `ops.conv.why_not` has nothing against.
"""

import torch

from gossamer.ops import _native
from gossamer.ops.addresses import address, optional_address
from gossamer.ops.conv import ConvSettings
from gossamer.ops.conv.settings import Pair
from gossamer.ops.kernels import active_kernels
from gossamer.ops.conv.settings import ConvSettings, Pair

_WHERE = "training kernels"


def conv(
    x: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    bias: torch.Tensor | None,
    settings: ConvSettings,
) -> torch.Tensor:
    """`conv2d(x, W) + b`."""
    x, values, mask_bits = x.contiguous(), values.contiguous(), mask_bits.contiguous()
    bias = None if bias is None else bias.contiguous()
    image = (x.shape[2], x.shape[3])
    y = x.new_empty(x.shape[0], settings.out_channels, *settings.out_size(image))
    _native.train_conv(
        address(values, _WHERE),
        values.numel(),
        mask_bits.numpy(),
        columns=settings.matrix_shape[1],
        images=x.shape[0],
        **settings.geometry(image),
        x=address(x, _WHERE),
        bias=optional_address(bias, _WHERE),
        y=address(y, _WHERE),
    )
    return y


def grad_input(
    grad: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    settings: ConvSettings,
    image: Pair,
) -> torch.Tensor:
    """The gradient of images of size `image` from that of the output."""
    grad, values, mask_bits = grad.contiguous(), values.contiguous(), mask_bits.contiguous()
    dx = grad.new_empty(grad.shape[0], settings.in_channels, *image)
    _native.train_conv_grad_input(
        address(values, _WHERE),
        values.numel(),
        mask_bits.numpy(),
        columns=settings.matrix_shape[1],
        images=grad.shape[0],
        **settings.geometry(image),
        grad=address(grad, _WHERE),
        dx=address(dx, _WHERE),
    )
    return dx


def grad_values(
    grad: torch.Tensor,
    x: torch.Tensor,
    mask_bits: torch.Tensor,
    num_values: int,
    settings: ConvSettings,
) -> torch.Tensor:
    """The gradient of the kept values, [n]."""
    grad, x, mask_bits = grad.contiguous(), x.contiguous(), mask_bits.contiguous()
    values = x.new_empty(num_values)
    _native.train_conv_grad_values(
        address(values, _WHERE),
        num_values,
        mask_bits.numpy(),
        columns=settings.matrix_shape[1],
        images=x.shape[0],
        **settings.geometry((x.shape[2], x.shape[3])),
        grad=address(grad, _WHERE),
        x=address(x, _WHERE),
    )
    return values
