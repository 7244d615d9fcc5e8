# SPDX-License-Identifier: Apache-2.0
"""The scale of a table that is trained: it follows the largest number that lookups touched."""

from typing import Final, NamedTuple

import torch

__all__ = ["MOST_CLIPPED", "Following"]

MOST_CLIPPED: Final = 0.01  # of the numbers that were looked up; beyond, the next step is exact


class Following(NamedTuple):
    """What the scale of a table is made of that follows lookups, to be changed in place.

    Attributes:
        top: the largest magnitude, [].
        counts: int64 [2]: steps until the next exact pass, and numbers that were clipped so far.
        looked_up: numbers that this layer has looked up so far.
    """

    top: torch.Tensor
    counts: torch.Tensor
    looked_up: int
