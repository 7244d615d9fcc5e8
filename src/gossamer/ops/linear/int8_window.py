# SPDX-License-Identifier: Apache-2.0
"""int8 products with any mask where the CPU picks bytes of a register (avx512vbmi2).

The numbers are those of `int8.py`, to the bit. Rows are lanes, so a call costs the tokens it has,
and zeros save time from half of them on. Other CPUs run the reference.
"""

import functools

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel, Problem
from gossamer.ops.kernels import active_kernels, available_extensions
from gossamer.ops.linear import dense_int8, int8
from gossamer.ops.linear.packed_weight import PackedWeight, pack_encoder_weight, pack_weight

NAME = "int8_window"
_MAX_DENSITY = 0.65
# Inside an engine, where its results have to be turned, `int8_panel` is as fast from here on down.
_MIN_ENGINE_DENSITY = 0.2


def pack_int8_windows(matrix: SparseMatrix) -> PackedWeight:
    """Quantise and pack the kept values of a weight.

    Args:
        matrix: finite float32 on the CPU, at most 131072 columns.
    """
    try:
        return pack_weight(NAME, _native.pack_int8_windows, matrix)
    except ValueError as error:
        raise KernelError(f"{NAME} kernel: {error}. Keep this layer in fp32.") from error


def _fits(problem: Problem) -> bool:
    matrix = problem.matrix
    lowest, highest = 0.0, _MAX_DENSITY
    if problem.engine:
        lowest, highest = _MIN_ENGINE_DENSITY, dense_int8.MIN_DENSITY
    return bool(matrix.shape[1] <= int8.MAX_COLUMNS and lowest <= matrix.density <= highest)


def _is_offered() -> bool:
    return active_kernels() == "avx512" and "avx512vbmi2" in available_extensions()


KERNELS = (
    Kernel.of_matrix(
        NAME,
        pack_int8_windows,
        _fits,
        "int8",
        is_offered=_is_offered,
        engines={"encoder": functools.partial(pack_encoder_weight, int8_layout="window")},
    ),
)
