# SPDX-License-Identifier: Apache-2.0
"""The arrays every native packer takes."""

import torch

from gossamer.formats import unpack
from gossamer.formats.base import SparseTensor
from gossamer.formats.bits import pack_bits


def canonical(sparse: SparseTensor) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int]]:
    """(values row-major, mask_bits, shape) of a weight in any format."""
    weight_RK, mask_RK = unpack(sparse)
    return weight_RK[mask_RK], pack_bits(mask_RK), sparse.shape
