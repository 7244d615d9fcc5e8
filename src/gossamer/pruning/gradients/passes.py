# SPDX-License-Identifier: Apache-2.0
"""Gradients of a loss with respect to the weights to prune, one backward pass at a time.

Then what a gradient method is, and scores from running sums of gradients, which hold nothing but
one tensor per layer.

Legend: R rows (outputs), K columns (inputs, or inputs x kernel).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.pruning.solvers import LayerProblem, LayerSolution
from gossamer.pruning.targets import Target

# A scalar whose gradient says what each weight is worth. It calls the model itself.
Loss = Callable[[nn.Module, Batch], torch.Tensor]


@dataclass(frozen=True)
class GradientPasses:
    """What is differentiated, and on which data.

    Attributes:
        model: at the weights where gradients are taken.
        batches: one backward pass each.
        loss: of the model on one batch.
    """

    model: nn.Module
    batches: Sequence[Batch]
    loss: Loss

    def each(self, targets: Sequence[Target]) -> Iterator[list[torch.Tensor]]:
        """Gradients [R, K] of `targets` for every pass, in float32 or wider.

        Only these weights require a gradient meanwhile, so that a backward pass ends at the first
        of them; call it inside `kept_flags`.
        """
        wanted = [target.weight for target in targets]
        self.model.requires_grad_(False)
        for weight in wanted:
            weight.requires_grad_(True)
        for number, batch in enumerate(self.batches):
            with torch.enable_grad():
                # Not backward(): the .grad of a user's training run stays as it is.
                found = torch.autograd.grad(self.value(number, batch), wanted, allow_unused=True)
            matrices = []
            for target, given in zip(targets, found, strict=True):
                gradient = torch.zeros_like(target.weight) if given is None else given
                if not torch.isfinite(gradient).all():
                    raise InputError(
                        f"{target.name}: its gradient in backward pass {number} is NaN or infinite."
                        " Run the loss on this batch and look at this layer."
                    )
                wide = gradient if gradient.dtype == torch.float64 else gradient.float()
                matrices.append(wide.flatten(1))
            yield matrices

    def value(self, number: int, batch: Batch) -> torch.Tensor:
        """The loss of a batch; InputError where it has no gradient that means something."""
        value: Any = self.loss(self.model, batch)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            found = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise InputError(
                f"loss: expected a scalar tensor, one number for a batch, got {found}. Return the"
                " mean."
            )
        if not value.requires_grad:
            raise InputError(
                "loss: has no gradient, as it does not depend on the weights to prune. Compute it"
                " from the model's output without detach(), item() or torch.no_grad()."
            )
        if not torch.isfinite(value.detach()).all():
            raise InputError(
                f"loss: is {value.item()} in backward pass {number}. Look at the model's output"
                " there."
            )
        return value


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
