# SPDX-License-Identifier: Apache-2.0
"""The three products of a training step on native kernels, straight from values and mask bits.

Values change every step and the mask does not, yet nothing is cached: a call decodes the mask into
a layout of 6 bytes per kept weight and drops it, at a few cycles per kept weight. So training keeps
no index beside the mask bits, and a new mask or an edit of the values needs no notice.

Legend: T tokens, R rows (outputs), K columns (inputs), n kept values.
"""

import torch

from gossamer.ops import _native
from gossamer.ops.addresses import address, optional_address
from gossamer.ops.kernels import active_kernels

_WHERE = "training kernels"


def why_unusable(*operands: torch.Tensor | None) -> str | None:
    """Why the kernels cannot take these operands; None if they can."""
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
    x_TK, values, mask_bits = _rows(x_TK), values.contiguous(), mask_bits.contiguous()
    y_TR = x_TK.new_empty(x_TK.shape[0], mask_bits.shape[0])
    bias = None if bias is None else bias.contiguous()
    _native.train_linear(
        address(values, _WHERE),
        values.numel(),
        mask_bits.numpy(),
        x_TK.shape[1],
        address(x_TK, _WHERE),
        x_TK.shape[0],
        x_TK.stride(0),
        address(y_TR, _WHERE),
        y_TR.stride(0),
        optional_address(bias, _WHERE),
        active_kernels(),
    )
    return y_TR


def grad_input(
    grad_TR: torch.Tensor, values: torch.Tensor, mask_bits: torch.Tensor, in_features: int
) -> torch.Tensor:
    """`dY W`, [T, K]."""
    grad_TR, values, mask_bits = _rows(grad_TR), values.contiguous(), mask_bits.contiguous()
    dx_TK = grad_TR.new_empty(grad_TR.shape[0], in_features)
    _native.train_grad_input(
        address(values, _WHERE),
        values.numel(),
        mask_bits.numpy(),
        in_features,
        address(grad_TR, _WHERE),
        grad_TR.shape[0],
        grad_TR.stride(0),
        address(dx_TK, _WHERE),
        dx_TK.stride(0),
        0,
        active_kernels(),
    )
    return dx_TK


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
