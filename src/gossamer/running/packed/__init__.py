# SPDX-License-Identifier: Apache-2.0
"""Layers in the packed form, for inference, and how a layer gets it.

Start at `pack_layer`: it asks the list of kernels of the layer's kind, lets a `Chooser` decide, and
gives a `PackedLinear` or a `PackedConv2d`, or says why the layer stays dense.
"""

from gossamer.running.packed.file_tables import tables_on_grids
from gossamer.running.packed.layers import PackedConv2d, PackedLinear
from gossamer.running.packed.packing import MIN_SPARSITY, Job, StaysDense, pack_layer

__all__ = [
    "MIN_SPARSITY",
    "Job",
    "PackedConv2d",
    "PackedLinear",
    "StaysDense",
    "pack_layer",
    "tables_on_grids",
]
