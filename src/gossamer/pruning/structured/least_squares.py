# SPDX-License-Identifier: Apache-2.0
"""Ridge regression from sums over tokens: scales of units, or whole weights of their consumer.

Everything is solved for the deviation from what is there, so that regularisation changes nothing
when the data says nothing; its strength is relative to the mean diagonal, so that the scale of the
activations does not matter.
Legend: N tokens, K inputs, J = K + 1 with a constant input for the bias, D outputs, U units.
"""

from dataclasses import dataclass

import torch

RIDGE = 1e-3
ESCALATIONS = 3
MAX_SCALE = 10.0
REFIT_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)


@dataclass
class Sums:
    """What least squares needs of inputs x and targets y, float64: gram [J, J], cross [J, D]."""

    gram: torch.Tensor
    cross: torch.Tensor
    target: float = 0.0

    @classmethod
    def zeros(cls, inputs: int, outputs: int) -> "Sums":
        """Of no tokens."""
        gram = torch.zeros(inputs + 1, inputs + 1, dtype=torch.float64)
        return cls(gram, torch.zeros(inputs + 1, outputs, dtype=torch.float64))

    def add(self, x_NK: torch.Tensor, y_ND: torch.Tensor) -> None:
        """Count some tokens in; products in their own precision, sums in float64."""
        x_NJ = torch.cat([x_NK, x_NK.new_ones(len(x_NK), 1)], dim=1)
        self.gram += x_NJ.T @ x_NJ
        self.cross += x_NJ.T @ y_ND
        self.target += float(y_ND.double().square().sum())

    def error(self, weight_DJ: torch.Tensor) -> float:
        """Summed squared error of x -> weight [x, 1] on these tokens, relative to that of 0."""
        quadratic = float(((weight_DJ @ self.gram) * weight_DJ).sum())
        linear = float((weight_DJ * self.cross.T).sum())
        return max(quadratic - 2 * linear + self.target, 0.0) / (self.target or 1.0)


def unit_scales(
    sums: Sums, weight_DJ: torch.Tensor, width: int, ridge: float = RIDGE
) -> tuple[torch.Tensor, str]:
    """Scales [U] of the units of `width` columns each that bring the output closest to the target.

    Returns:
        The scales and a note; all are 1 where even a stronger ridge leaves one outside
        [-10, 10].
    """
    weight_DK, bias_D = weight_DJ[:, :-1], weight_DJ[:, -1]
    units = weight_DK.shape[1] // width
    ones_U = torch.ones(units, dtype=torch.float64)
    if not units:
        return ones_U, ""
    inputs = weight_DK.shape[1]
    products_KK = (weight_DK.T @ weight_DK) * sums.gram[:inputs, :inputs]
    normal_UU = products_KK.reshape(units, width, units, width).sum((1, 3))
    cross_KD = sums.cross[:inputs] - torch.outer(sums.gram[:inputs, -1], bias_D)
    right_U = (cross_KD * weight_DK.T).sum(1).reshape(units, width).sum(1) - normal_UU @ ones_U
    for step in range(ESCALATIONS + 1):
        strength = ridge * 10**step
        scales_U = ones_U + solve_ridge(normal_UU, right_U[:, None], strength)[:, 0]
        if scales_U.abs().max() <= MAX_SCALE:
            return scales_U, "" if step == 0 else f"ridge raised to {strength:g}"
    return ones_U, f"a scale left [-{MAX_SCALE:g}, {MAX_SCALE:g}]; all scales stay 1"


def refitted(sums: Sums, weight_DJ: torch.Tensor, ridge: float, has_bias: bool) -> torch.Tensor:
    """The weight [D, J] nearest to `weight_DJ` in the ridge sense that fits the target best."""
    size = len(sums.gram) if has_bias else len(sums.gram) - 1
    gram = sums.gram[:size, :size]
    right = (sums.cross - sums.gram @ weight_DJ.T)[:size]
    result = weight_DJ.clone()
    result[:, :size] += solve_ridge(gram, right, ridge).T
    return result


def solve_ridge(normal: torch.Tensor, right: torch.Tensor, ridge: float) -> torch.Tensor:
    """(normal + ridge * mean diagonal * I)^-1 right by Cholesky in float64.

    A matrix that is not positive definite in float64 gets a stronger ridge, tenfold until it is.
    """
    size = len(normal)
    mean = float(normal.diagonal().mean()) if size else 0.0
    if mean <= 0 or not torch.isfinite(normal).all():
        return torch.zeros_like(right)
    eye = torch.eye(size, dtype=torch.float64)
    while True:
        factor, info = torch.linalg.cholesky_ex(normal + ridge * mean * eye)
        if int(info) == 0:
            return torch.cholesky_solve(right, factor)
        ridge = max(ridge * 10, 1e-14)
