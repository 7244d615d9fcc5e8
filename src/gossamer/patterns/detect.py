# SPDX-License-Identifier: Apache-2.0
"""The pattern behind a mask that came without one, such as the zeros of another pruner's file."""

import torch

from gossamer.errors import PatternError
from gossamer.patterns.base import Pattern, check_mask
from gossamer.patterns.block import Block
from gossamer.patterns.nm import NM
from gossamer.patterns.unstructured import Unstructured

# Most specific first: every 2:4 mask is 4:8 too, every 8x8 block mask is 4x4 too.
_GROUPS = (4, 8, 16, 32)
_BLOCKS = (
    *((32, 32), (16, 16), (8, 8), (4, 4)),
    *((1, 32), (32, 1), (1, 16), (16, 1), (1, 8), (8, 1), (1, 4), (4, 1)),
)


def detect_pattern(mask: torch.Tensor) -> Pattern:
    """The most specific of N:M (M = 4, 8, 16, 32), common blocks and unstructured that fits.

    Exact: one group with one weight too few or too many is enough to refuse N:M. A mask inferred
    from zeros therefore misses the pattern when a kept weight happens to be 0; prefer the mask.
    Masks that keep everything or nothing say nothing and are unstructured.
    """
    check_mask(mask, "mask")
    if mask.numel() == 0 or bool(mask.all()) or not bool(mask.any()):
        return Unstructured()
    for group in _GROUPS:
        # All groups must agree with the first, so its count is the only N worth trying.
        num_kept = int(mask[0, :group].sum())
        if mask.shape[1] % group == 0 and 0 < num_kept < group and _fits(NM(num_kept, group), mask):
            return NM(num_kept, group)
    for rows, columns in _BLOCKS:
        if mask.shape[0] % rows == 0 and mask.shape[1] % columns == 0:
            block = Block(rows, columns)
            if _fits(block, mask):
                return block
    return Unstructured()


def _fits(pattern: Pattern, mask: torch.Tensor) -> bool:
    try:
        # Nearly every wrong guess fails within a few rows; every block height divides this many.
        pattern.validate(mask[:32])
        pattern.validate(mask)
    except PatternError:
        return False
    return True
