# SPDX-License-Identifier: Apache-2.0
"""What a gradient method is, and scores from running sums of gradients.

A running sum holds nothing but one tensor per layer.

Legend: R rows, K columns.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from gossamer.errors import InputError
from gossamer.pruning.gradients.passes import GradientPasses
from gossamer.pruning.solvers import LayerProblem, LayerSolution
from gossamer.pruning.targets import Target


@dataclass(frozen=True)
class GradientProblems:
    """Layers to prune, and where their gradients come from.

    Attributes:
        passes: over the data.
        targets: layers.
        layers: the problem of each.
    """

    passes: GradientPasses
    targets: Sequence[Target]
    layers: Sequence[LayerProblem]


class GradientMethod(ABC):
    """What turns gradients into scores, and into masks and weights."""

    @abstractmethod
    def scores(self, problems: GradientProblems) -> Iterator[torch.Tensor]:
        """Scores [R, K] of every target, in their order."""

    def solutions(self, problems: GradientProblems) -> Iterator[LayerSolution]:
        """Mask and weights of every target, in their order."""
        for layer, scores_RK in zip(problems.layers, self.scores(problems), strict=True):
            yield layer.kept(scores_RK)


@dataclass(frozen=True)
class RunningMean(GradientMethod):
    """A method whose score is a mean over backward passes, times something of the weight.

    Attributes:
        of_gradient: what is averaged, e.g. |g|.
        of_weight: what the mean is multiplied by, e.g. |w|.
    """

    of_gradient: Callable[[torch.Tensor], torch.Tensor]
    of_weight: Callable[[torch.Tensor], torch.Tensor]

    def scores(self, problems: GradientProblems) -> Iterator[torch.Tensor]:
        """Scores [R, K] of all targets, after one round of passes."""
        passes, layers = problems.passes, problems.layers
        means = [torch.zeros_like(layer.weight_RK) for layer in layers]
        for gradients in passes.each(problems.targets):
            for mean_RK, gradient_RK in zip(means, gradients, strict=True):
                mean_RK.add_(self.of_gradient(gradient_RK))
        for mean_RK, layer in zip(means, layers, strict=True):
            check_reached(layer, mean_RK)
            yield self.of_weight(layer.weight_RK) * mean_RK.div_(len(passes.batches))


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
    if has_weights and not size_RK.any():
        raise InputError(
            f"{problem.name}: its gradient is zero on all of the data. Either the loss does not"
            " depend on this layer (then add it to ignore=[...]), or it is at its minimum, as"
            " distillation from the model itself is (then use another loss)."
        )
