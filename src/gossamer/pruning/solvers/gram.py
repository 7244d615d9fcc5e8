# SPDX-License-Identifier: Apache-2.0
"""Gram matrices made invertible: dead inputs, damping, and what is done when that is not enough."""

from dataclasses import dataclass

import torch

from gossamer.errors import InputError

# Damping is a part of the mean diagonal. Where rounding or too few samples leave the matrix without
# a Cholesky factor, it is raised in these steps.
ESCALATION = (1.0, 10.0, 100.0)


class NotPositiveDefinite(InputError):
    """A Gram matrix has no Cholesky factor, however much it is damped."""


@dataclass(frozen=True)
class DampedGram:
    """A Gram matrix with ones for dead inputs and a heavier diagonal, and its lower factor.

    Attributes:
        matrix_KK: symmetric, positive definite.
        factor_KK: lower triangular, `matrix_KK = factor_KK @ factor_KK.T`.
        dead_K: inputs that were zero in every sample.
        damping: what was added to the diagonal, as a part of its mean.
    """

    matrix_KK: torch.Tensor  # noqa: N815
    factor_KK: torch.Tensor  # noqa: N815
    dead_K: torch.Tensor  # noqa: N815
    damping: float

    def inverse_upper_factor(self) -> torch.Tensor:
        """U, upper triangular, with U^T U = matrix^-1.

        Row i holds the direction in which the weights behind column i make up for a change of
        column i, with everything before it frozen; U_ii^2 is the inverse's diagonal of what is
        left.
        """
        inverse = torch.cholesky_inverse(self.factor_KK)
        factor: torch.Tensor
        factor, failed = torch.linalg.cholesky_ex(inverse, upper=True)
        if int(failed):
            raise NotPositiveDefinite("the inverse of the Gram matrix lost its factor by rounding.")
        return factor

    def note(self, wanted: float) -> tuple[str, ...]:
        """What to tell the user about a damping that had to be raised."""
        if self.damping <= wanted:
            return ()
        raised = f"from {wanted:g} to {self.damping:g}"
        return (f"damping was raised {raised}: the inputs are degenerate",)


def damped(gram_KK: torch.Tensor, damping: float) -> DampedGram:
    """`gram_KK` with dead inputs set to 1 and at least `damping` of the mean diagonal added.

    Raises:
        NotPositiveDefinite: not even a hundred times the damping gives a Cholesky factor.
    """
    diagonal_K = gram_KK.diagonal()
    if not torch.isfinite(diagonal_K).all():
        bad = int((~torch.isfinite(diagonal_K)).sum())
        raise InputError(
            f"{bad} of {len(diagonal_K)} inputs have squares that are not finite: the calibration"
            " data makes activations overflow or NaN. Check the model and the data."
        )
    dead_K = diagonal_K == 0
    alive = diagonal_K[~dead_K]
    mean = float(alive.mean()) if len(alive) else 1.0
    for factor in ESCALATION:
        matrix = gram_KK.clone()
        matrix.diagonal()[dead_K] = 1.0
        matrix.diagonal().add_(factor * damping * mean)
        lower, failed = torch.linalg.cholesky_ex(matrix)
        if not int(failed) and torch.isfinite(lower.diagonal()).all():
            return DampedGram(matrix, lower, dead_K, factor * damping)
    raise NotPositiveDefinite(
        f"the Gram matrix has no Cholesky factor even with {ESCALATION[-1] * damping:g} of its mean"
        " diagonal added. Give more calibration data or a larger damping."
    )
