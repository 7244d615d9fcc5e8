# SPDX-License-Identifier: Apache-2.0
"""Registers the native panel kernel as the linear op of every built-in format.

The panel form serves any mask. Kernels that use a pattern's structure register for its format here.
"""

from gossamer.formats import FORMATS, unpack
from gossamer.formats.base import SparseTensor
from gossamer.formats.bits import pack_bits
from gossamer.ops.dispatch import LINEAR
from gossamer.ops.panel import PanelWeight


def prepare_panel(sparse: SparseTensor) -> PanelWeight:
    """The panel layout of a weight in any format: packed once, called many times."""
    weight_RK, mask_RK = unpack(sparse)
    return PanelWeight(weight_RK[mask_RK], pack_bits(mask_RK), sparse.shape)


for _name in FORMATS.names():
    LINEAR.add(_name, prepare_panel)
