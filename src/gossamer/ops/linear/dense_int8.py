# SPDX-License-Identifier: Apache-2.0
"""Products with an int8 weight that keeps everything, by a kernel of our own.

The numbers are those of `int8.py`, to the bit. Zeros are multiplied like everything else, so it is
the kernel of layers without zeros, and what the others have to beat, for any number of tokens.
"""

import functools

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel, Problem
from gossamer.ops.kernels import active_kernels, available_extensions
from gossamer.ops.linear import int8
from gossamer.ops.linear.packed_weight import PackedWeight, pack_encoder_weight, pack_weight

NAME = "dense/int8"
# Inside an engine nothing is raced: above this density skipping zeros takes longer (Zen 5).
MIN_DENSITY = 0.42


def pack_dense_int8(matrix: SparseMatrix) -> PackedWeight:
    """Quantise and pack a weight, its zeros included.

    Args:
        matrix: finite float32 on the CPU, at most 131072 columns.
    """
    try:
        return pack_weight(NAME, _native.pack_dense_int8, matrix)
    except ValueError as error:
        raise KernelError(f"{NAME} kernel: {error}. Keep this layer in fp32.") from error


def _fits(problem: Problem) -> bool:
    matrix = problem.matrix
    return bool(
        matrix.shape[1] <= int8.MAX_COLUMNS and (not problem.engine or matrix.density > MIN_DENSITY)
    )


def _is_offered() -> bool:
    # Without VNNI two quads of `int8_quad` share a widening.
    return active_kernels() == "avx512" and "avx512vnni" in available_extensions()


KERNELS = (
    Kernel.of_matrix(
        NAME,
        pack_dense_int8,
        _fits,
        "int8",
        is_offered=_is_offered,
        engines={"encoder": functools.partial(pack_encoder_weight, int8_layout="dense")},
    ),
)
