# SPDX-License-Identifier: Apache-2.0
"""Two solvers that look for the mask and take the weights from least squares.

ADMM (in the manner of arXiv 2401.02938 and 2406.07831): two copies of the weight are pulled
together: one minimises the change of the outputs, the other obeys the pattern. The penalty grows
while the mask settles; at the end the kept weights are the exact least squares solution for the
mask. Inputs are scaled to equal squares first, so that the size of an entry says what it does to
the outputs.

Exact OBS (arXiv 2208.11580): drop one weight at a time, each time the one that costs least. Rows do
not see each other: each is eliminated to the end by itself, which gives an order and what every
step cost. The count of the layer then takes steps from all rows, cheapest first. What OBS leaves on
a row is the least squares solution for its mask, so the weights come from `refit`. Costs R K^3: for
small layers.

Legend: R rows, K columns, S rows of a slice.
"""

from dataclasses import dataclass

import torch

from gossamer.errors import PatternError
from gossamer.patterns import NM, Unstructured
from gossamer.pruning.legal_counts import keep_highest
from gossamer.pruning.solvers.problem import LayerProblem, LayerSolution, damped, refit

# How fast the penalty grows, by the part of the mask that still moves.
_GROWTH = ((0.05, 1.3), (0.005, 1.2), (0.0, 1.1))
_STEPS_PER_GROWTH = 3
_MIN_STEPS = 20


@dataclass(frozen=True)
class ADMM:
    """The solver and its settings.

    Attributes:
        damping: added to the diagonal of the Gram matrix, as a part of its mean.
        steps: at most so many; it ends when the mask stops moving.
        penalty: first weight of the pattern against the outputs, relative to an input's square.
    """

    damping: float = 0.01
    steps: int = 100
    penalty: float = 0.1

    def __call__(self, problem: LayerProblem) -> LayerSolution:
        """Prune one layer."""
        gram = damped(problem.gram_for("ADMM"), self.damping)
        size_K = gram.matrix_KK.diagonal().sqrt()
        scaled_KK = gram.matrix_KK / size_K / size_K[:, None]
        mask_RK, start_RK = self._settle(problem, scaled_KK, problem.weight_RK * size_K)
        return refit(problem, mask_RK, self.damping, start_RK / size_K)

    def _settle(
        self, problem: LayerProblem, gram_KK: torch.Tensor, weight_RK: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The mask, and the scaled weights it was found with."""
        values_K, vectors_KK = torch.linalg.eigh(gram_KK)
        wanted_RK = weight_RK @ gram_KK
        legal_RK, dual_RK = weight_RK.clone(), torch.zeros_like(weight_RK)
        penalty = self.penalty
        mask_RK = torch.ones_like(weight_RK, dtype=torch.bool)
        for step in range(self.steps):
            right_RK = wanted_RK - dual_RK + penalty * legal_RK
            free_RK = (right_RK @ vectors_KK).div_(values_K + penalty) @ vectors_KK.T
            pulled_RK = free_RK + dual_RK / penalty
            before_RK, mask_RK = mask_RK, problem.mask(pulled_RK.abs())
            legal_RK = torch.where(mask_RK, pulled_RK, 0.0)
            dual_RK = dual_RK + penalty * (free_RK - legal_RK)
            moved = float((before_RK != mask_RK).float().mean()) if mask_RK.numel() else 0.0
            if moved == 0.0 and step >= _MIN_STEPS:
                break
            if step % _STEPS_PER_GROWTH == _STEPS_PER_GROWTH - 1:
                penalty *= next(factor for bound, factor in _GROWTH if moved >= bound)
        return mask_RK, legal_RK


# Rows whose inverses [K, K] are held together.
SLICE_NUMBERS = 1 << 24


@dataclass(frozen=True)
class ExactOBS:
    """The solver and its settings.

    Attributes:
        damping: added to the diagonal of the Gram matrix, as a part of its mean.
    """

    damping: float = 0.01

    def __call__(self, problem: LayerProblem) -> LayerSolution:
        """Prune one layer."""
        pattern = problem.pattern
        if not isinstance(pattern, Unstructured | NM):
            raise PatternError(
                f"{problem.name}: exact-obs drops single weights and works with 'unstructured' and"
                f" N:M, not with {pattern}. Use sparsegpt or admm."
            )
        gram = damped(problem.gram_for("exact OBS"), self.damping)
        inverse_KK = torch.cholesky_inverse(gram.factor_KK)
        weight_RK, allowed_RK = problem.weight_RK, problem.allowed_RK
        if allowed_RK is None:
            allowed_RK = torch.ones_like(weight_RK, dtype=torch.bool)
        grouped = pattern if isinstance(pattern, NM) else None
        # What the step that dropped a weight cost; inf for weights that stay to the end.
        costs_RK = torch.empty_like(weight_RK)
        height = max(1, SLICE_NUMBERS // max(1, weight_RK.shape[1] ** 2))
        for start in range(0, len(weight_RK), height):
            rows = slice(start, start + height)
            costs_RK[rows] = _eliminate(weight_RK[rows], inverse_KK, allowed_RK[rows], grouped)
        mask_RK = costs_RK.isinf() if grouped else keep_highest(costs_RK, problem.count, pattern)
        return refit(problem, mask_RK, self.damping)


def _eliminate(
    weight_SK: torch.Tensor,
    inverse_KK: torch.Tensor,
    allowed_SK: torch.Tensor,
    pattern: NM | None,
) -> torch.Tensor:
    """What dropping each weight cost, always more than the step before it in the same row.

    Steps of a row must be taken in order, so a step counts with the dearest one before it.
    """
    rows = torch.arange(len(weight_SK))
    weight_SK = weight_SK.clone()
    inverse_SKK = inverse_KK.repeat(len(weight_SK), 1, 1)
    alive_SK = torch.ones_like(weight_SK, dtype=torch.bool)
    costs_SK = torch.full_like(weight_SK, torch.inf)
    dearest_S = weight_SK.new_zeros(len(weight_SK))
    infinity = torch.full_like(dearest_S, torch.inf)
    num_columns = weight_SK.shape[1]
    num_left = num_columns // pattern.group * pattern.num_kept if pattern else 0
    for _ in range(num_columns - num_left):
        diagonal_SK = inverse_SKK.diagonal(dim1=1, dim2=2)
        scores_SK = (weight_SK.square() / diagonal_SK).masked_fill_(~allowed_SK, 0.0)
        droppable_SK = alive_SK
        if pattern:
            # Of groups that still hold more than N.
            num_alive = alive_SK.view(len(alive_SK), -1, pattern.group).sum(dim=2)
            has_more = (num_alive > pattern.num_kept).repeat_interleave(pattern.group, dim=1)
            droppable_SK = alive_SK & has_more
        scores_SK.masked_fill_(~droppable_SK, torch.inf)
        cost_S, column_S = scores_SK.min(dim=1)
        dearest_S = torch.maximum(torch.nextafter(dearest_S, infinity), cost_S)
        costs_SK[rows, column_S] = dearest_S
        alive_SK[rows, column_S] = False
        direction_SK = inverse_SKK[rows, column_S]
        pivot_S = direction_SK[rows, column_S]
        weight_SK -= (weight_SK[rows, column_S] / pivot_S)[:, None] * direction_SK
        inverse_SKK.baddbmm_(
            (direction_SK / pivot_S[:, None])[:, :, None], direction_SK[:, None, :], alpha=-1
        )
        weight_SK[rows, column_S] = 0.0
        # The dropped row and column are zero but for rounding, and no longer looked at.
        inverse_SKK[rows, column_S, column_S] = 1.0
    return costs_SK
