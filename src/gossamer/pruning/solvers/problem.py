# SPDX-License-Identifier: Apache-2.0
"""The problem every layer-wise method solves: reproduce a layer's outputs with fewer weights.

With inputs X [T, K] of calibration data and the Gram matrix G = X^T X / T, a layer [R, K] looks for
a legal mask and new kept weights that minimise the mean squared change of its outputs,
tr((W' - W) G (W' - W)^T).

Legend: R rows (outputs), K columns (inputs).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from gossamer.patterns import Pattern

# What a method must know of a layer's inputs: nothing, the mean square of each, or the Gram matrix.
Needed = Literal["none", "squares", "gram"]


@dataclass(frozen=True)
class LayerSolution:
    """What became of a layer.

    Attributes:
        weight_RK: kept weights, exact zeros elsewhere.
        mask_RK: bool, True = kept.
        notes: what the user should know.
        cost: what the method itself counted, tr(D G D^T) with the damped Gram matrix; None if it
            does not count.
    """

    weight_RK: torch.Tensor  # noqa: N815
    mask_RK: torch.Tensor  # noqa: N815
    notes: tuple[str, ...] = ()
    cost: float | None = None


@dataclass(frozen=True)
class LayerProblem:
    """One layer to prune.

    Attributes:
        name: dotted name, for messages.
        weight_RK: the weight to reproduce, float32 or float64.
        gram_KK: mean outer product of the inputs; [K] (its diagonal) for methods that ask for
            squares; None for those that ask for nothing.
        pattern: which masks are legal.
        count: kept weights to aim at; patterns with a fixed density ignore it.
        allowed_RK: an earlier mask, inside which the new one must stay; None for a dense layer.
    """

    name: str
    weight_RK: torch.Tensor  # noqa: N815  (shape suffix)
    gram_KK: torch.Tensor | None  # noqa: N815
    pattern: Pattern
    count: int
    allowed_RK: torch.Tensor | None = None  # noqa: N815

    @property
    def density(self) -> float:
        """The density nearest to `count` that the pattern can have."""
        return nearest_density(self.pattern, self.weight_RK, self.count)

    def gram_for(self, asker: str) -> torch.Tensor:
        """The Gram matrix, which `asker` cannot do without."""
        if self.gram_KK is None or self.gram_KK.ndim != 2:
            raise ValueError(f"{self.name}: {asker} needs the Gram matrix of the inputs")
        return self.gram_KK

    def error(self, weight_RK: torch.Tensor) -> float:
        """Mean squared change of the outputs per token, as a part of the outputs' own square."""
        gram_KK = self.gram_for("the error")
        change = output_square(weight_RK - self.weight_RK, gram_KK)
        whole = output_square(self.weight_RK, gram_KK)
        return change / whole if whole else 0.0

    def inside(self, scores_RK: torch.Tensor) -> torch.Tensor:
        """The scores; below every other one, -inf, where an earlier mask pruned."""
        if self.allowed_RK is None:
            return scores_RK
        return scores_RK.masked_fill(~self.allowed_RK, -torch.inf)

    def mask(self, scores_RK: torch.Tensor) -> torch.Tensor:
        """The legal mask of the highest scores with this count, inside the allowed weights."""
        return keep_highest(self.inside(scores_RK), self.count, self.pattern)

    def kept(self, scores_RK: torch.Tensor) -> LayerSolution:
        """The weights with the highest scores, as they are."""
        mask_RK = self.mask(scores_RK)
        return LayerSolution(torch.where(mask_RK, self.weight_RK, 0.0), mask_RK)


Solve = Callable[[LayerProblem], LayerSolution]


def output_square(weight_RK: torch.Tensor, gram_KK: torch.Tensor) -> float:
    """tr(W G W^T): the mean square of the outputs, summed over rows."""
    return float(((weight_RK @ gram_KK) * weight_RK).sum(dtype=torch.float64))


def keep_highest(scores_RK: torch.Tensor, count: int, pattern: Pattern) -> torch.Tensor:
    """The legal mask of the highest scores with nearly `count` kept weights."""
    density = nearest_density(pattern, scores_RK, count)
    if density == 0.0:
        return torch.zeros_like(scores_RK, dtype=torch.bool)
    return pattern.project(scores_RK, density)


def nearest_density(pattern: Pattern, matrix_RK: torch.Tensor, count: int) -> float:
    """The density nearest to `count` kept weights that the pattern can have in this matrix."""
    if pattern.fixed_density is not None:
        return pattern.fixed_density
    rows, columns = matrix_RK.shape
    if not count or not rows * columns:
        return 0.0
    return pattern.legal_density((rows, columns), count / (rows * columns))
