# SPDX-License-Identifier: Apache-2.0
"""A product inside the native call of a whole encoder: from panel to panel, its bias included."""

from gossamer.ops import _native
from gossamer.ops.dispatch import Problem
from gossamer.ops.kernels import active_kernels
from gossamer.ops.packed import checked_weight, optional_array


def pack_encoder_weight(problem: Problem, int8_layout: str = "") -> _native.PanelLinear:
    """The weight of a problem for `PackedEncoder`.

    Args:
        problem: its matrix is float32 on the CPU.
        int8_layout: "panel" or "quad", as those of `pack_int8`; empty for fp32.
    """
    matrix = problem.matrix
    rows, columns = matrix.shape
    values, bits = checked_weight(matrix, (rows, columns), "encoder")
    return _native.pack_panel_linear(
        values.numpy(),
        bits.numpy(),
        rows,
        columns,
        bias=optional_array(problem.bias),
        kernels=active_kernels(),
        int8_layout=int8_layout,
    )
