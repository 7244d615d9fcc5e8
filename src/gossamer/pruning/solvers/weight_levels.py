# SPDX-License-Identifier: Apache-2.0
"""The levels that integer kernels store weights on, for joint pruning and quantisation.

8 bits: one scale per row. 4 bits: one scale for every 64 columns of a row, taken when the pass
reaches them, from weights that carry all corrections so far. Scales are bf16. Both are symmetric,
so zero is exact; files (`formats/grid/`) and kernels (`ops/linear/few_int.py`) find the levels
again.

Legend: R rows, K columns, B columns of one group of levels.
"""

import torch

from gossamer.errors import InputError

COLUMNS = 64
# Highest level -> divisors of the largest weight that are tried for a scale.
_DIVISORS = {127: (127.0,), 7: (9.0, 8.0, 7.0, 6.0)}


class WeightLevels:
    """Levels `scale * q`, where q is between -127 and 127, or between -7 and 7.

    Attributes:
        scale_R: of every row, for the columns that were begun last.
    """

    def __init__(self, weight_RK: torch.Tensor, bits: int) -> None:
        if bits not in (4, 8):
            raise InputError(f"bits: joint quantisation needs 4 or 8 bits, got {bits}.")
        self._is_grouped = bits == 4
        self._highest = 2 ** (bits - 1) - 1
        self.scale_R = self._best_scale(weight_RK.T)

    def begins_at(self, column: int) -> bool:
        """Whether another scale serves the columns from this one on."""
        return self._is_grouped and column % COLUMNS == 0

    def begin(self, kept_BR: torch.Tensor) -> None:
        """Take the scales for the next columns; weights that are dropped are zeros."""
        self.scale_R = self._best_scale(kept_BR)

    def round(self, column_R: torch.Tensor) -> torch.Tensor:
        """The nearest level of every row for one weight each."""
        return _nearest(column_R, self.scale_R, self._highest)

    def _best_scale(self, kept_BR: torch.Tensor) -> torch.Tensor:
        """The scale with the least squared error of those tried; small ones clip the largest."""
        largest_R = kept_BR.abs().amax(dim=0)
        best_R = torch.ones_like(largest_R)  # rows of zeros: any scale represents them
        least_R = torch.full_like(largest_R, torch.inf)
        for divisor in _DIVISORS[self._highest]:
            scale_R = (largest_R / divisor).bfloat16().to(largest_R.dtype)
            scale_R = torch.where(scale_R > 0, scale_R, 1.0)
            error_R = (kept_BR - _nearest(kept_BR, scale_R, self._highest)).square_().sum(dim=0)
            better_R = error_R < least_R
            best_R = torch.where(better_R, scale_R, best_R)
            least_R = torch.where(better_R, error_R, least_R)
        return best_R


def _nearest(weight: torch.Tensor, scale_R: torch.Tensor, highest: int) -> torch.Tensor:
    # Adding 0 makes 0.0 of -0.0, which integers do not have.
    return (weight / scale_R).round_().clamp_(-highest, highest).mul_(scale_R).add_(0.0)
