# SPDX-License-Identifier: Apache-2.0
"""The built-in kernels of `y = act(x W^T + b)`.

The panel form serves any mask and is the linear op of every format. Kernels that use a pattern's
structure, few tokens or a lower precision stand beside it; `compile` measures which one runs.
"""

from gossamer.formats import FORMATS
from gossamer.formats.base import SparseTensor
from gossamer.ops.dispatch import LINEAR, Kernel, add_kernels
from gossamer.ops.linear import bf16, few, few_int, int8, nmg, vnm
from gossamer.ops.linear import row_groups as strip
from gossamer.ops.linear.canonical import canonical
from gossamer.ops.linear.packed_weight import PackedWeight
from gossamer.ops.linear.panel import pack_panel


def prepare_panel(sparse: SparseTensor) -> PackedWeight:
    """The panel layout of a weight in any format: packed once, called many times."""
    return pack_panel(*canonical(sparse))


def _prepare_bf16(sparse: SparseTensor) -> PackedWeight:
    return pack_panel(*canonical(sparse), bf16=True)


PANEL = Kernel("panel", lambda sparse: True, prepare_panel)
PANEL_BF16 = Kernel("panel-bf16", lambda sparse: True, _prepare_bf16, "bf16")

for _name in FORMATS.names():
    LINEAR.add(_name, PANEL)

add_kernels("linear", (PANEL_BF16,))
for _family in (strip, nmg, vnm, few, few_int, bf16, int8):
    add_kernels("linear", _family.KERNELS)
