# SPDX-License-Identifier: Apache-2.0
"""Products with a sparse matrix for inference: one file per family of kernels.

The panel form serves any mask. Kernels that use a pattern's structure, few tokens or a lower
precision stand beside it; `compile` measures which one runs. Importing this room lists them all.
"""

from gossamer.ops.dispatch import add_kernels
from gossamer.ops.linear import bf16, few, few_int, int8, nmg, panel, row_groups, vnm
from gossamer.ops.linear.packed_weight import PackedWeight

for _family in (panel, row_groups, nmg, vnm, few, few_int, bf16, int8):
    add_kernels("linear", _family.KERNELS)

__all__ = ["PackedWeight"]
