# SPDX-License-Identifier: Apache-2.0
"""The three products of a training step on native kernels, straight from values and mask bits.

Values change every step and the mask does not, yet nothing is cached: a call decodes the mask into
a layout of 6 bytes per kept weight and drops it, at a few cycles per kept weight. So training keeps
no index beside the mask bits, and a new mask or an edit of the values needs no notice.

Legend: T tokens, R rows (outputs), K columns (inputs), n kept values.
"""

from collections.abc import Callable

import torch

from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.kernels import active_kernels
from gossamer.ops.without_native import why_missing

_WHERE = "training kernels"


def why_unusable(*operands: torch.Tensor | None) -> str | None:
    """Why the kernels cannot take these operands; None if they can."""
    if why_missing() is not None:
        return why_missing()
    for tensor in operands:
        if tensor is None:
            continue
        if tensor.dtype is not torch.float32:
            return f"training kernels are float32, got {tensor.dtype}"
        if tensor.device.type != "cpu":
            return f"training kernels run on the CPU, got {tensor.device}"
    return None


def linear(
    x_TK: torch.Tensor, values: torch.Tensor, mask_bits: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`x W^T + b`, [T, R]."""
    y_TR = x_TK.new_empty(x_TK.shape[0], mask_bits.shape[0])
    _multiply(_native.train_linear, x_TK, values, mask_bits, x_TK.shape[1], y_TR, bias)
    return y_TR


def grad_input(
    grad_TR: torch.Tensor, values: torch.Tensor, mask_bits: torch.Tensor, in_features: int
) -> torch.Tensor:
    """`dY W`, [T, K]."""
    dx_TK = grad_TR.new_empty(grad_TR.shape[0], in_features)
    _multiply(_native.train_grad_input, grad_TR, values, mask_bits, in_features, dx_TK)
    return dx_TK


def _multiply(
    kernel: Callable[..., None],
    x: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    in_features: int,
    y: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    """`y` becomes the product of the rows of `x` with the kept values."""
    x, values, mask_bits = _rows(x), values.contiguous(), mask_bits.contiguous()
    bias = None if bias is None else bias.contiguous()
    kernel(
        address(values, _WHERE),
        values.numel(),
        mask_bits.numpy(),
        in_features,
        address(x, _WHERE),
        x.shape[0],
        x.stride(0),
        address(y, _WHERE),
        y.stride(0),
        address(bias, _WHERE),
        active_kernels(),
    )


def grad_values(
    grad_TR: torch.Tensor, x_TK: torch.Tensor, mask_bits: torch.Tensor, num_values: int
) -> torch.Tensor:
    """`(dY^T X)[mask]`, [n]."""
    grad_TR, x_TK, mask_bits = _rows(grad_TR), _rows(x_TK), mask_bits.contiguous()
    values = x_TK.new_empty(num_values)
    _native.train_grad_values(
        address(values, _WHERE),
        num_values,
        mask_bits.numpy(),
        x_TK.shape[1],
        address(grad_TR, _WHERE),
        grad_TR.stride(0),
        address(x_TK, _WHERE),
        x_TK.stride(0),
        x_TK.shape[0],
        active_kernels(),
    )
    return values


def _rows(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix whose rows are contiguous and do not overlap, as those of an expanded one do."""
    if matrix.stride(1) == 1 and matrix.stride(0) >= matrix.shape[1]:
        return matrix
    return matrix.contiguous()
