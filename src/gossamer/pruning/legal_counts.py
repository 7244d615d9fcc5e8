# SPDX-License-Identifier: Apache-2.0
"""As many kept weights as were asked for, or as nearly as a pattern and an older mask allow."""

import torch

from gossamer.errors import InputError
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


def check_inside(
    name: str, mask_RK: torch.Tensor, allowed_RK: torch.Tensor | None, pattern: Pattern
) -> None:
    """Pruned stays pruned: refuse a mask that leaves the one the layer has."""
    num_back = 0 if allowed_RK is None else int((mask_RK & ~allowed_RK).sum())
    if allowed_RK is not None and num_back:
        raise InputError(
            f"{name}: is masked already and keeps {int(allowed_RK.sum())} of {mask_RK.numel()}"
            f" weights; keeping {int(mask_RK.sum())} ({pattern}) would bring {num_back} pruned ones"
            " back. Ask for a higher sparsity, keep the pattern, or start from to_dense()."
        )
