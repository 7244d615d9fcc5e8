# SPDX-License-Identifier: Apache-2.0
"""Scores from running sums of gradients: nothing but one tensor per layer is held.

Legend: R rows, K columns.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from gossamer.errors import InputError
from gossamer.pruning.gradients.passes import GradientPasses
from gossamer.pruning.solvers.problem import LayerProblem, LayerSolution, select
from gossamer.pruning.targets import Target

Scores = tuple[int, torch.Tensor]
Solutions = tuple[int, LayerSolution]


@dataclass(frozen=True)
class RunningMean:
    """A method whose score is a mean over backward passes, times something of the weight.

    Attributes:
        of_gradient: what is averaged, e.g. |g|.
        of_weight: what the mean is multiplied by, e.g. |w|.
    """

    of_gradient: Callable[[torch.Tensor], torch.Tensor]
    of_weight: Callable[[torch.Tensor], torch.Tensor]

    def scores(
        self,
        passes: GradientPasses,
        targets: Sequence[Target],
        problems: Sequence[LayerProblem],
    ) -> Iterator[Scores]:
        """(index of the target, scores [R, K]) of all targets, after one round of passes."""
        means = [torch.zeros_like(problem.weight_RK) for problem in problems]
        num_passes = 0
        for gradients in passes.each(targets):
            num_passes += 1
            for mean_RK, gradient_RK in zip(means, gradients, strict=True):
                mean_RK.add_(self.of_gradient(gradient_RK))
        for index, (mean_RK, problem) in enumerate(zip(means, problems, strict=True)):
            check_reached(problem, mean_RK)
            yield index, self.of_weight(problem.weight_RK) * mean_RK.div_(num_passes)

    def solutions(
        self,
        passes: GradientPasses,
        targets: Sequence[Target],
        problems: Sequence[LayerProblem],
    ) -> Iterator[Solutions]:
        """(index of the target, its mask; kept weights stay as they are)."""
        for index, scores_RK in self.scores(passes, targets, problems):
            mask_RK = select(problems[index], scores_RK)
            weight_RK = torch.where(mask_RK, problems[index].weight_RK, 0.0)
            yield index, LayerSolution(weight_RK, mask_RK)


def taylor() -> RunningMean:
    """First order: the mean over passes of |w g|, what the loss of a batch changes by without w.

    Not |w * mean g|: in a trained model the gradients of the batches cancel, and what is left of
    their mean is noise, while the size of the single changes still tells weights apart.
    """
    return RunningMean(torch.abs, torch.abs)


def fisher() -> RunningMean:
    """Second order, diagonal: w^2 mean(g^2) / 2, optimal brain damage with the empirical Fisher."""
    return RunningMean(torch.square, lambda weight: weight.square() / 2)


def check_reached(problem: LayerProblem, size_RK: torch.Tensor) -> None:
    """Refuse a layer whose gradient was zero everywhere: ranking it would be a coin toss."""
    allowed_RK = problem.allowed_RK
    has_weights = bool(size_RK.numel()) if allowed_RK is None else bool(allowed_RK.any())
    if has_weights and not bool(size_RK.any()):
        raise InputError(
            f"{problem.name}: its gradient is zero on all of the data. Either the loss does not"
            " depend on this layer (then add it to ignore=[...]), or it is at its minimum, as"
            " distillation from the model itself is (then use another loss)."
        )
