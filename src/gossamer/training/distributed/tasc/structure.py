# SPDX-License-Identifier: Apache-2.0
"""Which blocks are sent next: a pure function of what all ranks know, so that all choose alike.

Legend: R blocks of all parameters, one after another.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# Part of the budget that goes to the oldest blocks once they have half of the age limit: without it
# blocks that were last sent together would all reach the limit in the same step.
_OLDEST_SHARE = 0.25


def choose_blocks(
    scores_R: torch.Tensor,
    sizes_R: torch.Tensor,
    ages_R: torch.Tensor,
    *,
    budget: int,
    max_age: int,
) -> torch.Tensor:
    """True for the blocks to send: the best scores per element within a budget of elements.

    Args:
        scores_R: gain per element.
        sizes_R: elements of each block.
        ages_R: steps that wait in each block by the time it would be sent, this one included.
        budget: elements that may be sent; at least one block is.
        max_age: blocks of this age are sent whatever they score, and beyond the budget if need be.
    """
    scores, sizes, ages = scores_R.double().numpy(), sizes_R.numpy(), ages_R.numpy()
    chosen = ages >= max_age
    left = budget - int(sizes[chosen].sum())
    elderly = ages * 2 >= max_age
    if elderly.any():
        left -= _take(chosen, np.where(elderly, ages, 0), sizes, int(left * _OLDEST_SHARE))
    _take(chosen, scores, sizes, left)
    if len(chosen) and not chosen.any():
        chosen[scores.argmax()] = True
    return torch.from_numpy(chosen)


def _take(chosen: NDArray[Any], scores: NDArray[Any], sizes: NDArray[Any], budget: int) -> int:
    """Choose the highest positive scores that fit; elements spent. Ties go to the first block."""
    if budget <= 0:
        return 0
    able = np.flatnonzero((scores > 0) & ~chosen)
    if not len(able):
        return 0
    # No more than this many fit: the others need not be sorted.
    most = budget // int(sizes[able].min())
    if most < len(able):
        found = scores[able]
        able = able[found >= np.partition(found, len(found) - most - 1)[len(found) - most - 1]]
    order = able[np.argsort(-scores[able], kind="stable")]
    spent = sizes[order].cumsum()
    count = int(np.searchsorted(spent, budget, side="right"))
    chosen[order[:count]] = True
    return int(spent[count - 1]) if count else 0
