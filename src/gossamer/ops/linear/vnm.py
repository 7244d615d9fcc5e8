# SPDX-License-Identifier: Apache-2.0
"""V:N:M on panels: V rows share four columns of each M, so a block counts only those.

Blocks of columns are as wide as four used columns of M fill the cache, and rows in them M/4 times
longer than those of an unstructured weight of the same density.
"""

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel, Problem, of_matrix
from gossamer.ops.linear.packed_weight import PackedWeight, pack_weight
from gossamer.patterns import NUM_SHARED, VNM

# Accumulators of more rows would leave L2; fewer rows do not pay for fetching their columns.
_MAX_TILE_ROWS = 512
_MIN_TILE_ROWS = 16


def pack_vnm(matrix: SparseMatrix) -> PackedWeight:
    """A weight whose mask obeys its pattern V:N:M."""
    pattern = matrix.pattern
    if not isinstance(pattern, VNM):
        raise KernelError(f"vnm kernel: expected a V:N:M weight, got {pattern}.")
    rows = min(pattern.block_rows, _MAX_TILE_ROWS)
    options = {"tile_rows": rows, "used": NUM_SHARED, "group": pattern.group}
    return pack_weight("vnm", _native.pack_shared_panel, matrix, **options)


def _accepts(problem: Problem) -> bool:
    # With M = 4 every column is used: that is the panel kernel.
    pattern = problem.matrix.pattern
    if not isinstance(pattern, VNM):
        return False
    return pattern.block_rows >= _MIN_TILE_ROWS and pattern.group > NUM_SHARED


KERNELS = (Kernel("vnm", of_matrix(pack_vnm), _accepts),)
