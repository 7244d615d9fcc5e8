# SPDX-License-Identifier: Apache-2.0
"""As many kept weights as were asked for, or as nearly as a pattern allows."""

import torch

from gossamer.patterns import Pattern


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
