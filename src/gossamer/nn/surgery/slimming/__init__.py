# SPDX-License-Identifier: Apache-2.0
"""Units of transformer blocks cut out for good, and linear layers seen as matrices.

`find_groups` finds heads and filters, `cut_units` removes some. `conv1d_to_linear` makes ordinary
Linears of the layers of GPT-2.
"""

from gossamer.nn.surgery.slimming.matrix_layer import (
    conv1d_paths,
    conv1d_to_linear,
    is_matrix_layer,
    matrix_of,
    set_matrix,
)
from gossamer.nn.surgery.slimming.units import UnitGroup, cut_units, find_groups, unit_counts

__all__ = [
    "UnitGroup",
    "conv1d_paths",
    "conv1d_to_linear",
    "cut_units",
    "find_groups",
    "is_matrix_layer",
    "matrix_of",
    "set_matrix",
    "unit_counts",
]
