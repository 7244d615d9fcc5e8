# SPDX-License-Identifier: Apache-2.0
"""The native kernels of block:RxC with R > 1, fp32, many tokens: a loaded column serves R rows."""

import torch

from gossamer.errors import KernelError
from gossamer.formats.base import SparseTensor
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel
from gossamer.ops.linear.canonical import canonical
from gossamer.ops.linear.packed_weight import PackedWeight, pack_weight
from gossamer.patterns.block import Block


def pack_strip(
    values: torch.Tensor, mask_bits: torch.Tensor, shape: tuple[int, int], *, block_rows: int
) -> PackedWeight:
    """A weight where each `block_rows` rows keep the same columns, from its canonical arrays."""
    return pack_weight("strip", _native.pack_strip, values, mask_bits, shape, block_rows=block_rows)


def _accepts(sparse: SparseTensor) -> bool:
    return isinstance(sparse.pattern, Block) and sparse.pattern.rows > 1


def _prepare(sparse: SparseTensor) -> PackedWeight:
    pattern = sparse.pattern
    if not isinstance(pattern, Block):
        raise KernelError(f"strip kernel: expected a block:RxC weight, got {pattern}.")
    return pack_strip(*canonical(sparse), block_rows=pattern.rows)


KERNELS = (Kernel("strip", _accepts, _prepare),)
