# SPDX-License-Identifier: Apache-2.0
"""The three products of a training step of a sparse convolution, from values and mask bits.

As in ops/training/linear_kernels.py nothing is cached between calls. Images are float32 [N, C, H,
W] on the CPU; settings are those that `ops.conv.why_not` has nothing against.
"""

from collections.abc import Callable

import torch

from gossamer.ops import _native
from gossamer.ops.addresses import address, optional_address
from gossamer.ops.conv import ConvSettings, Pair

_WHERE = "training kernels"


def conv(
    x: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    bias: torch.Tensor | None,
    settings: ConvSettings,
) -> torch.Tensor:
    """`conv2d(x, W) + b`."""
    image = (x.shape[2], x.shape[3])
    y = x.new_empty(x.shape[0], settings.out_channels, *settings.out_size(image))
    _run(_native.train_conv, values, mask_bits, settings, image, x=x, bias=bias, y=y)
    return y


def grad_input(
    grad: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    settings: ConvSettings,
    image: Pair,
) -> torch.Tensor:
    """The gradient of images of size `image` from that of the output."""
    dx = grad.new_empty(grad.shape[0], settings.in_channels, *image)
    _run(_native.train_conv_grad_input, values, mask_bits, settings, image, grad=grad, dx=dx)
    return dx


def grad_values(
    grad: torch.Tensor,
    x: torch.Tensor,
    mask_bits: torch.Tensor,
    num_values: int,
    settings: ConvSettings,
) -> torch.Tensor:
    """The gradient of the kept values, [n]."""
    values, image = x.new_empty(num_values), (x.shape[2], x.shape[3])
    _run(_native.train_conv_grad_values, values, mask_bits, settings, image, grad=grad, x=x)
    return values


def _run(
    kernel: Callable[..., None],
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    settings: ConvSettings,
    image: Pair,
    **operands: torch.Tensor | None,
) -> None:
    """Call a kernel with tensors under their names; results are contiguous as they were made."""
    held = {name: None if t is None else t.contiguous() for name, t in operands.items()}
    values = values.contiguous()
    kernel(
        address(values, _WHERE),
        values.numel(),
        mask_bits.contiguous().numpy(),
        columns=settings.matrix_shape[1],
        images=next(len(t) for t in held.values() if t is not None),
        **settings.geometry(image),
        **{name: optional_address(t, _WHERE) for name, t in held.items()},
    )
