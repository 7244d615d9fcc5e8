# SPDX-License-Identifier: Apache-2.0
"""The native panel kernel: any mask, many tokens or few, fp32 arithmetic."""

import functools

from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel
from gossamer.ops.linear.packed_weight import PackedWeight, pack_weight


def pack_panel(matrix: SparseMatrix, *, bf16: bool = False) -> PackedWeight:
    """A weight as panels.

    With `bf16` the values are rounded to bf16, to nearest, ties to even: 4 bytes per kept weight
    instead of 6. Activations and sums stay fp32.
    """
    name = "panel-bf16" if bf16 else "panel"
    return pack_weight(name, _native.pack_panel, matrix, bf16=bf16)


KERNELS = (
    Kernel.of_matrix("panel", pack_panel),
    Kernel.of_matrix("panel-bf16", functools.partial(pack_panel, bf16=True), precision="bf16"),
)
