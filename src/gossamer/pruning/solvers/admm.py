# SPDX-License-Identifier: Apache-2.0
"""Mask and weights together by ADMM (in the manner of arXiv 2401.02938 and 2406.07831).

Two copies of the weight are pulled together: one minimises the change of the outputs, the other
obeys the pattern. The penalty grows while the mask settles; at the end the kept weights are the
exact least squares solution for the mask. Inputs are scaled to equal squares first, so that the
size of an entry says what it does to the outputs.

Legend: R rows, K columns.
"""

from dataclasses import dataclass

import torch

from gossamer.pruning.solvers.least_squares import damped, refit
from gossamer.pruning.solvers.problem import LayerProblem, LayerSolution

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
