# SPDX-License-Identifier: Apache-2.0
"""The native panel kernel: any mask, many tokens or few, fp32 arithmetic."""

import functools

from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel, Problem
from gossamer.ops.linear.packed_weight import PackedWeight, pack_encoder_weight, pack_weight


def pack_panel(matrix: SparseMatrix, *, bf16: bool = False) -> PackedWeight:
    """A weight as panels.

    With `bf16` the values are rounded to bf16, to nearest, ties to even: 4 bytes per kept weight
    instead of 6. Activations and sums stay fp32.
    """
    return pack_weight("panel-bf16" if bf16 else "panel", _native.pack_panel, matrix, bf16=bf16)


def _pack(problem: Problem, *, bf16: bool = False) -> PackedWeight:
    return pack_panel(problem.matrix, bf16=bf16)


_pack_bf16 = functools.partial(_pack, bf16=True)
KERNELS = (
    Kernel("panel", _pack, engines={"decoder": _pack, "encoder": pack_encoder_weight}),
    Kernel("panel-bf16", _pack_bf16, precision="bf16", engines={"decoder": _pack_bf16}),
)
