# SPDX-License-Identifier: Apache-2.0
"""SparseGPT (arXiv 2301.00774): one pass over the columns; those behind make up for each zero.

Columns are visited from left to right. When a weight is dropped (or rounded to levels), the weights
of its row that come later are moved so that the outputs change least. Corrections of the columns
behind a lazy block are applied once per block. The mask of a block is chosen from weights that
carry all corrections so far: for patterns with column groups at every group, otherwise at the
block.

Joint quantisation rounds to the levels that integer kernels store weights on. 8 bits: one scale per
row. 4 bits: one scale for every 64 columns of a row, taken when the pass reaches them, from weights
that carry all corrections so far. Scales are bf16. Both are symmetric, so zero is exact; files
(`formats/grid/`) and kernels (`ops/linear/few_int.py`) find the levels again.

Legend: R rows, K columns, B columns of a lazy block, or of one group of levels.
"""

from dataclasses import dataclass

import torch

from gossamer.errors import InputError
from gossamer.patterns.selection import kept_count
from gossamer.pruning.solvers.problem import LayerProblem, LayerSolution, damped

COLUMNS = 64
# Highest level -> divisors of the largest weight that are tried for a scale.
_DIVISORS = {127: (127.0,), 7: (9.0, 8.0, 7.0, 6.0)}


@dataclass(frozen=True)
class SparseGPT:
    """The solver and its settings.

    Attributes:
        damping: added to the diagonal of the Gram matrix, as a part of its mean.
        block: columns of a lazy block.
        bits: of joint quantisation, 4 or 8; None leaves kept weights in floating point.
    """

    damping: float = 0.01
    block: int = 128
    bits: int | None = None

    def __call__(self, problem: LayerProblem) -> LayerSolution:
        """Prune one layer."""
        gram = damped(problem.gram_for("SparseGPT"), self.damping)
        upper_KK = gram.inverse_upper_factor()
        # Columns as rows: every step below touches whole rows of memory.
        weight_KR = problem.weight_RK.T.contiguous()
        weight_KR[gram.dead_K] = 0.0
        mask_KR = torch.ones_like(weight_KR, dtype=torch.bool)
        levels = None if self.bits is None else WeightLevels(problem.weight_RK, self.bits)
        choose = _Choice(problem, upper_KK)
        cost = 0.0
        for first, last in choose.lazy_blocks(self.block):
            columns = slice(first, last)
            mask_BR, error_BR = _walk(
                weight_KR[columns], upper_KK[columns, columns], choose, first, levels
            )
            mask_KR[columns] = mask_BR
            cost += float(error_BR.square().sum(dtype=torch.float64))
            weight_KR[last:].addmm_(upper_KK[columns, last:].T, error_BR, alpha=-1)
        mask_RK = mask_KR.T.contiguous()
        # where, not a product: no -0.0.
        weight_RK = torch.where(mask_RK, weight_KR.T, 0.0).contiguous()
        return LayerSolution(weight_RK, mask_RK, gram.note(self.damping), cost)


class WeightLevels:
    """Levels `scale * q`, where q is between -127 and 127, or between -7 and 7.

    Attributes:
        scale_R: of every row, for the columns that were begun last.
    """

    def __init__(self, weight_RK: torch.Tensor, bits: int) -> None:
        if bits not in (4, 8):
            raise InputError(f"bits: joint quantisation needs 4 or 8 bits, got {bits}.")
        self._highest = 2 ** (bits - 1) - 1
        self.begin(weight_RK.T)

    def begins_at(self, column: int) -> bool:
        """Whether another scale serves the columns from this one on."""
        return self._highest == 7 and column % COLUMNS == 0

    def begin(self, kept_BR: torch.Tensor) -> None:
        """Take the scales for the next columns; weights that are dropped are zeros.

        Those with the least squared error of the scales tried; small ones clip the largest weight.
        """
        largest_R = kept_BR.abs().amax(dim=0)
        self.scale_R = torch.ones_like(largest_R)  # rows of zeros: any scale represents them
        least_R = torch.full_like(largest_R, torch.inf)
        for divisor in _DIVISORS[self._highest]:
            scale_R = (largest_R / divisor).bfloat16().to(largest_R.dtype)
            scale_R = torch.where(scale_R > 0, scale_R, 1.0)
            error_R = (kept_BR - self._nearest(kept_BR, scale_R)).square_().sum(dim=0)
            better_R = error_R < least_R
            self.scale_R = torch.where(better_R, scale_R, self.scale_R)
            least_R = torch.where(better_R, error_R, least_R)

    def round(self, column_R: torch.Tensor) -> torch.Tensor:
        """The nearest level of every row for one weight each."""
        return self._nearest(column_R, self.scale_R)

    def _nearest(self, weight: torch.Tensor, scale_R: torch.Tensor) -> torch.Tensor:
        levels = (weight / scale_R).round_().clamp_(-self._highest, self._highest)
        # Adding 0 makes 0.0 of -0.0, which integers do not have.
        return levels.mul_(scale_R).add_(0.0)


class _Choice:
    """Which weights of the next columns stay."""

    def __init__(self, problem: LayerProblem, upper_KK: torch.Tensor) -> None:
        weight_RK, self.pattern = problem.weight_RK, problem.pattern
        self.is_fixed = self.pattern.fixed_density is not None
        self.density = problem.density
        self.unit = self.pattern.padded_shape((len(weight_RK), 1))[1]
        self._diagonal_K = upper_KK.diagonal()
        self._rows, self._columns = weight_RK.shape
        allowed_RK = problem.allowed_RK
        if allowed_RK is None:
            allowed_RK = torch.ones_like(weight_RK, dtype=torch.bool)
        self._allowed_RK = allowed_RK
        # Weights that may be kept in front of every column.
        self._before: list[int] = [0, *allowed_RK.sum(dim=0).cumsum(0).tolist()]

    def lazy_blocks(self, width: int) -> list[tuple[int, int]]:
        """Column ranges of whole groups, about `width` each."""
        step = max(1, width // self.unit) * self.unit
        return [(k, min(k + step, self._columns)) for k in range(0, self._columns, step)]

    def mask(self, weight_BR: torch.Tensor, first: int) -> torch.Tensor:
        """Of the columns from `first` on: bool [B, R], exact counts over the whole layer."""
        last = first + len(weight_BR)
        density = self.density if self.is_fixed else self._share(first, last)
        if density == 0.0:
            return torch.zeros_like(weight_BR, dtype=torch.bool)
        scores_RB = (weight_BR / self._diagonal_K[first:last, None]).square_().T
        scores_RB = scores_RB.masked_fill(~self._allowed_RK[:, first:last], -torch.inf)
        return self.pattern.project(scores_RB.contiguous(), density).T

    def _share(self, first: int, last: int) -> float:
        """The density of these columns such that all blocks together keep the exact count.

        Blocks share it by what they may keep, so that an earlier mask is never left.
        """
        height = self.pattern.padded_shape((1, self.unit))[0]
        total = kept_count(self.density, self._rows // height * (self._columns // self.unit))
        upto = [round(total * self._before[k] / max(1, self._before[-1])) for k in (first, last)]
        return (upto[1] - upto[0]) * height * self.unit / max(1, self._rows * (last - first))


def _walk(
    weight_BR: torch.Tensor,
    upper_BB: torch.Tensor,
    choose: _Choice,
    first: int,
    levels: WeightLevels | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One lazy block in place: its mask, and the error of each column over its U_ii."""
    step = choose.unit if choose.is_fixed else len(weight_BR)
    mask_BR = torch.empty_like(weight_BR, dtype=torch.bool)
    error_BR = torch.empty_like(weight_BR)
    for i, scale in enumerate(upper_BB.diagonal().tolist()):
        if i % step == 0:
            mask_BR[i : i + step] = choose.mask(weight_BR[i : i + step], first + i)
        if levels is not None and levels.begins_at(first + i):
            # Behind `known` nothing is decided yet; the largest weights are likely to stay.
            known, group = i // step * step + step, weight_BR[i : i + COLUMNS].clone()
            group[: known - i] *= mask_BR[i : min(known, i + COLUMNS)]
            levels.begin(group)
        column_R = weight_BR[i]
        kept_R = column_R if levels is None else levels.round(column_R)
        final_R = torch.where(mask_BR[i], kept_R, 0.0)
        error_R = torch.sub(column_R, final_R, out=error_BR[i]).div_(scale)
        # One outer product: this column's own entry becomes final_R up to rounding.
        weight_BR[i + 1 :].addr_(upper_BB[i, i + 1 :], error_R, alpha=-1)
        column_R.copy_(final_R)
    return mask_BR, error_BR
