# SPDX-License-Identifier: Apache-2.0
"""Which blocks are sent next: a pure function of what all ranks know, so that all choose alike.

Legend: R blocks of all parameters, one after another.
"""

import torch

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
    chosen_R = ages_R >= max_age
    left = budget - int(sizes_R[chosen_R].sum())
    elderly_R = torch.where(ages_R * 2 >= max_age, ages_R, 0).double()
    left -= _take(chosen_R, elderly_R, sizes_R, int(left * _OLDEST_SHARE))
    _take(chosen_R, scores_R, sizes_R, left)
    if len(chosen_R) and not chosen_R.any():
        chosen_R[scores_R.argmax()] = True
    return chosen_R


def _take(
    chosen_R: torch.Tensor, scores_R: torch.Tensor, sizes_R: torch.Tensor, budget: int
) -> int:
    """Choose the highest positive scores that fit; elements spent. Ties go to the first block."""
    if budget <= 0:
        return 0
    open_R = torch.where(chosen_R, 0.0, scores_R.double())
    order_R = torch.argsort(open_R, descending=True, stable=True)
    order_R = order_R[: int((open_R > 0).sum())]
    spent_R = sizes_R[order_R].cumsum(0)
    count = int(torch.searchsorted(spent_R, budget, right=True))
    chosen_R[order_R[:count]] = True
    return int(spent_R[count - 1]) if count else 0
