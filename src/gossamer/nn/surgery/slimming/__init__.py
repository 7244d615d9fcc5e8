# SPDX-License-Identifier: Apache-2.0
"""Units of transformer blocks cut out for good: the model gets smaller, and stays ordinary.

`find_groups` finds a block's heads and filters, each `UnitGroup` with the rows and columns they
own; `cut_units` removes some, and `unit_counts` says how many every block has left. Layers are seen
as matrices by `nn/surgery/matrix_layers`.
"""

from gossamer.nn.surgery.slimming.units import UnitGroup, cut_units, find_groups, unit_counts

__all__ = ["UnitGroup", "cut_units", "find_groups", "unit_counts"]
