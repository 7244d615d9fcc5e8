# SPDX-License-Identifier: Apache-2.0
"""The native panel kernel: any mask, many tokens or few, fp32 arithmetic."""

import torch

from gossamer.ops import _native
from gossamer.ops.linear.packed_weight import PackedWeight, pack_weight


def pack_panel(
    values: torch.Tensor, mask_bits: torch.Tensor, shape: tuple[int, int], *, bf16: bool = False
) -> PackedWeight:
    """Kept values of a [R, K] weight, row-major, and its packed mask, as panels.

    With `bf16` the values are rounded to bf16, to nearest, ties to even: 4 bytes per kept weight
    instead of 6. Activations and sums stay fp32.
    """
    name = "panel-bf16" if bf16 else "panel"
    return pack_weight(name, _native.pack_panel, values, mask_bits, shape, bf16=bf16)
