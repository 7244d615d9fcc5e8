# SPDX-License-Identifier: Apache-2.0
"""V:N:M on panels: V rows share four columns of each M, so a block counts only those.

Blocks of columns are as wide as four used columns of M fill the cache, and rows in them M/4 times
longer than those of an unstructured weight of the same density.
"""

import torch

from gossamer.formats.base import SparseTensor
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel
from gossamer.ops.linear.canonical import canonical
from gossamer.ops.linear.packed_weight import PackedWeight, pack_weight
from gossamer.patterns import VNM
from gossamer.patterns.syntax import NUM_SHARED

# Accumulators of more rows would leave L2; fewer rows do not pay for fetching their columns.
_MAX_TILE_ROWS = 512
_MIN_TILE_ROWS = 16


def pack_vnm(
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    shape: tuple[int, int],
    *,
    block_rows: int,
    group: int,
) -> PackedWeight:
    """Kept values of a V:N:M weight, row-major, and its packed mask; V = block_rows, M = group."""
    options = {"tile_rows": min(block_rows, _MAX_TILE_ROWS), "used": NUM_SHARED, "group": group}
    return pack_weight("vnm", _native.pack_shared_panel, values, mask_bits, shape, **options)


def _accepts(sparse: SparseTensor) -> bool:
    # With M = 4 every column is used: that is the panel kernel.
    pattern = sparse.pattern
    if not isinstance(pattern, VNM):
        return False
    return pattern.block_rows >= _MIN_TILE_ROWS and pattern.group > NUM_SHARED


def _prepare(sparse: SparseTensor) -> PackedWeight:
    pattern = sparse.pattern
    assert isinstance(pattern, VNM)  # noqa: S101  (accepted)
    rows, group = pattern.block_rows, pattern.group
    return pack_vnm(*canonical(sparse), block_rows=rows, group=group)


KERNELS = (Kernel("vnm", _accepts, _prepare),)
