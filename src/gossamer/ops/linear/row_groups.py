# SPDX-License-Identifier: Apache-2.0
"""The native kernels of block:RxC with R > 1, fp32, many tokens: a loaded column serves R rows."""

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel, Problem, of_matrix
from gossamer.ops.linear.packed_weight import PackedWeight, pack_weight
from gossamer.patterns import Block


def pack_strip(matrix: SparseMatrix, *, block_rows: int | None = None) -> PackedWeight:
    """A weight where each `block_rows` rows keep the same columns; None = as its pattern says."""
    pattern = matrix.pattern
    if block_rows is None:
        if not isinstance(pattern, Block):
            raise KernelError(f"strip kernel: expected a block:RxC weight, got {pattern}.")
        block_rows = pattern.rows
    return pack_weight("strip", _native.pack_strip, matrix, block_rows=block_rows)


def _accepts(problem: Problem) -> bool:
    pattern = problem.matrix.pattern
    return isinstance(pattern, Block) and pattern.rows > 1


KERNELS = (Kernel("strip", of_matrix(pack_strip), _accepts),)
