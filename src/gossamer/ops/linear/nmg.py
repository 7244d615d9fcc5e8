# SPDX-License-Identifier: Apache-2.0
"""The native kernel of nmg:n:m:g, fp32, many tokens: a loaded column serves n rows."""

import math

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel, Problem, of_matrix
from gossamer.ops.linear.packed_weight import PackedWeight, pack_weight
from gossamer.patterns import NMG

# n: one row alone shares nothing, more than four do not fit into the registers.
MIN_KEPT, MAX_KEPT = 2, 4
# C(m, n) ways to choose: each has too few columns when there are many. 28 (2:8) win over the panel
# kernel by 4 %, 120 (2:16) lose by 3 to 16 %.
MAX_CHOICES = 100


def pack_nmg(matrix: SparseMatrix) -> PackedWeight:
    """A weight whose mask obeys its pattern nmg:n:m:g."""
    pattern = matrix.pattern
    if not isinstance(pattern, NMG):
        raise KernelError(f"nmg kernel: expected an nmg:n:m:g weight, got {pattern}.")
    sizes = {"num_kept": pattern.num_kept, "group": pattern.group, "repeats": pattern.repeats}
    return pack_weight("nmg", _native.pack_nmg, matrix, **sizes)


def _accepts(problem: Problem) -> bool:
    pattern = problem.matrix.pattern
    return (
        isinstance(pattern, NMG)
        and MIN_KEPT <= pattern.num_kept <= MAX_KEPT
        and math.comb(pattern.group, pattern.num_kept) <= MAX_CHOICES
    )


KERNELS = (Kernel("nmg", of_matrix(pack_nmg), _accepts),)
