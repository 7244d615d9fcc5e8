# SPDX-License-Identifier: Apache-2.0
"""Between kept values and the dense matrix, row-major: native on the CPU, torch elsewhere.

A compact layer does this in every training step (benchmarks/training_step.py times one). The native
loops replaced masked_scatter_ and nonzero + index_select, which cost more than the small products.

Legend: R rows (outputs), K columns (inputs), n kept values.
"""

from collections.abc import Callable

import torch

from gossamer.formats import SparseMatrix
from gossamer.formats.bits import unpack_bits
from gossamer.ops import _native
from gossamer.ops.addresses import address, runs_native
from gossamer.ops.kernels import active_kernels
from gossamer.out_of_memory import names_memory

__all__ = [
    "expand",
    "expand_matrix",
    "fill",
    "gather",
    "gather_kept",
]

_NATIVE_SIZES = (2, 4, 8)
_WHERE = "compact layer"


@names_memory("compact layer")
def expand(values: torch.Tensor, mask_bits: torch.Tensor, in_features: int) -> torch.Tensor:
    """The dense weight [R, K] with exact zeros where nothing is kept."""
    dense = values.new_empty(mask_bits.shape[0], in_features)
    fill(dense, values, mask_bits)
    return dense


def expand_matrix(matrix: SparseMatrix) -> torch.Tensor:
    """The dense weight in its own shape, exact zeros included: `matrix.dense()`, in native code."""
    bits = matrix.positions.bits().to(matrix.values.device)
    return expand(matrix.floats(), bits, matrix.shape[1]).view(matrix.positions.shape)


def fill(dense_RK: torch.Tensor, values: torch.Tensor, mask_bits: torch.Tensor) -> None:
    """Overwrite a contiguous dense weight with the kept values and zeros."""
    if _is_native(dense_RK, values, mask_bits):
        _run(_native.expand, values, mask_bits, dense_RK)
    else:
        dense_RK.zero_().masked_scatter_(unpack_bits(mask_bits, dense_RK.shape[1]), values)


@names_memory("compact layer")
def gather_kept(dense_RK: torch.Tensor, mask_bits: torch.Tensor, num_values: int) -> torch.Tensor:
    """The n kept entries of a dense matrix."""
    if not _is_native(dense_RK, dense_RK, mask_bits):
        return gather(dense_RK, unpack_bits(mask_bits, dense_RK.shape[1]))
    values = dense_RK.new_empty(num_values)
    _run(_native.gather, values, mask_bits, dense_RK)
    return values


def gather(dense: torch.Tensor, mask_RK: torch.Tensor) -> torch.Tensor:
    """The kept entries of a tensor with as many elements as the bool mask, row-major."""
    return dense.reshape(-1).index_select(0, mask_RK.reshape(-1).nonzero().squeeze(1))


def _run(
    kernel: Callable[..., None],
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    dense_RK: torch.Tensor,
) -> None:
    kernel(
        address(values, _WHERE),
        values.numel(),
        mask_bits.numpy(),
        dense_RK.shape[1],
        values.element_size(),
        address(dense_RK, _WHERE),
        active_kernels(),
    )


def _is_native(dense: torch.Tensor, values: torch.Tensor, mask_bits: torch.Tensor) -> bool:
    return (
        values.element_size() in _NATIVE_SIZES
        and dense.dtype is values.dtype
        and runs_native(dense, values, mask_bits)
    )
