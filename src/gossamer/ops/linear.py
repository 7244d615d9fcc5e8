# SPDX-License-Identifier: Apache-2.0
"""The built-in kernels of `y = act(x W^T + b)`.

The panel form serves any mask and is the linear op of every format. Kernels that use a pattern's
structure, few tokens or a lower precision stand beside it; `compile` measures which one runs.
"""

import torch

from gossamer.formats import FORMATS, unpack
from gossamer.formats.base import SparseTensor
from gossamer.formats.bits import pack_bits
from gossamer.ops.dispatch import LINEAR
from gossamer.ops.packed_weight import PackedWeight
from gossamer.ops.panel import pack_panel


def canonical(sparse: SparseTensor) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int]]:
    """(values, mask_bits, shape) of a weight in any format: what native packers take."""
    weight_RK, mask_RK = unpack(sparse)
    return weight_RK[mask_RK], pack_bits(mask_RK), sparse.shape


def prepare_panel(sparse: SparseTensor) -> PackedWeight:
    """The panel layout of a weight in any format: packed once, called many times."""
    return pack_panel(*canonical(sparse))


for _name in FORMATS.names():
    LINEAR.add(_name, prepare_panel)
