# SPDX-License-Identifier: Apache-2.0
"""Kernels of patterns whose rows share columns, fp32, many tokens: a loaded column serves them all.

block:RxC with R > 1 runs on strips of R rows. nmg:n:m:g serves n rows per column. V:N:M runs on
panels: V rows share four columns of each M, so a block counts only those. Blocks of columns are as
wide as four used columns of M fill the cache, and rows in them M/4 times longer than those of an
unstructured weight of the same density.
"""

import math

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel, Problem
from gossamer.ops.linear.packed_weight import PackedWeight, pack_weight
from gossamer.patterns import NMG, VNM, Block
from gossamer.patterns.syntax import NUM_SHARED

# n: one row alone shares nothing, more than four do not fit into the registers.
MIN_KEPT, MAX_KEPT = 2, 4
# C(m, n) ways to choose: each has too few columns when there are many. 28 (2:8) win over the panel
# kernel by 4 %, 120 (2:16) lose by 3 to 16 %.
MAX_CHOICES = 100
# Accumulators of more rows would leave L2; fewer rows do not pay for fetching their columns.
_MIN_TILE_ROWS, _MAX_TILE_ROWS = 16, 512


def pack_strip(matrix: SparseMatrix, *, block_rows: int | None = None) -> PackedWeight:
    """A weight where each `block_rows` rows keep the same columns; None = as its pattern says."""
    pattern = matrix.pattern
    if block_rows is None:
        if not isinstance(pattern, Block):
            raise KernelError(f"strip kernel: expected a block:RxC weight, got {pattern}.")
        block_rows = pattern.rows
    return pack_weight("strip", _native.pack_strip, matrix, block_rows=block_rows)


def _accepts_strip(problem: Problem) -> bool:
    pattern = problem.matrix.pattern
    return isinstance(pattern, Block) and pattern.rows > 1


def pack_nmg(matrix: SparseMatrix) -> PackedWeight:
    """A weight whose mask obeys its pattern nmg:n:m:g."""
    pattern = matrix.pattern
    if not isinstance(pattern, NMG):
        raise KernelError(f"nmg kernel: expected an nmg:n:m:g weight, got {pattern}.")
    return pack_weight(
        "nmg",
        _native.pack_nmg,
        matrix,
        num_kept=pattern.num_kept,
        group=pattern.group,
        repeats=pattern.repeats,
    )


def _accepts_nmg(problem: Problem) -> bool:
    pattern = problem.matrix.pattern
    return (
        isinstance(pattern, NMG)
        and MIN_KEPT <= pattern.num_kept <= MAX_KEPT
        and math.comb(pattern.group, pattern.num_kept) <= MAX_CHOICES
    )


def pack_vnm(matrix: SparseMatrix) -> PackedWeight:
    """A weight whose mask obeys its pattern V:N:M."""
    pattern = matrix.pattern
    if not isinstance(pattern, VNM):
        raise KernelError(f"vnm kernel: expected a V:N:M weight, got {pattern}.")
    rows = min(pattern.block_rows, _MAX_TILE_ROWS)
    return pack_weight(
        "vnm",
        _native.pack_shared_panel,
        matrix,
        tile_rows=rows,
        used=NUM_SHARED,
        group=pattern.group,
    )


def _accepts_vnm(problem: Problem) -> bool:
    # With M = 4 every column is used: that is the panel kernel.
    pattern = problem.matrix.pattern
    return (
        isinstance(pattern, VNM)
        and pattern.block_rows >= _MIN_TILE_ROWS
        and pattern.group > NUM_SHARED
    )


KERNELS = (
    Kernel.of_matrix("strip", pack_strip, _accepts_strip),
    Kernel.of_matrix("nmg", pack_nmg, _accepts_nmg),
    Kernel.of_matrix("vnm", pack_vnm, _accepts_vnm),
)
