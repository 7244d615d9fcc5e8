# SPDX-License-Identifier: Apache-2.0
"""The native panel kernel: any mask, fp32, many tokens or few."""

import torch

from gossamer.ops import _native
from gossamer.ops.packed_weight import PackedWeight, pack_weight


def pack_panel(
    values: torch.Tensor, mask_bits: torch.Tensor, shape: tuple[int, int]
) -> PackedWeight:
    """Kept values of a [R, K] weight, row-major, and its packed mask, as panels."""
    return pack_weight("panel", _native.pack_panel, values, mask_bits, shape)
