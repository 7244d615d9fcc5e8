# SPDX-License-Identifier: Apache-2.0
"""Products with a sparse matrix for inference: one file per family of kernels.

The panel form serves any mask. Kernels that use a pattern's structure, few tokens or a lower
precision stand beside it; `compile` measures which one runs. Importing this room lists them all.
Start with `PackedWeight`, which every family packs into.
"""

from gossamer.ops.dispatch import add_kernels
from gossamer.ops.linear import (
    bf16,
    dense,
    dense_int8,
    few,
    few_int,
    int8,
    int8_window,
    panel,
    shared_columns,
)
from gossamer.ops.linear.int8 import ACTIVATION_BITS, MAX_COLUMNS, pack_int8
from gossamer.ops.linear.packed_weight import PackedWeight
from gossamer.ops.linear.panel import pack_panel

for _family in (panel, shared_columns, few, few_int, bf16, int8, int8_window, dense_int8, dense):
    add_kernels("linear", _family.KERNELS)

__all__ = [
    "ACTIVATION_BITS",
    "MAX_COLUMNS",
    "PackedWeight",
    "few",
    "few_int",
    "pack_int8",
    "pack_panel",
]
