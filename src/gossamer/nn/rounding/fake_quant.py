# SPDX-License-Identifier: Apache-2.0
"""Numbers as the int8 kernels see them, differentiable: rounded forward, straight through backward.

The grids are those of `ops/linear/int8.py`: weights in steps of a 127th of the largest of their
row, activations in steps of the largest of their token (an image, for convolutions), or of one
scale for all. Zero is on every grid, so pruned weights stay exact zeros.

Legend: R rows (outputs), K columns (inputs), n kept values.
"""

import math
from typing import Any

import torch

# Below it a token counts as zero, as in native/include/gossamer/int8.hpp.
_SMALLEST_TOP = 2.0**-120
_WEIGHT_LIMIT = 127
_CANDIDATES = 40  # scales that are tried


class _StraightThrough(torch.autograd.Function):
    """Forward gives the second tensor, backward passes the gradient to the first."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
        return rounded

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


def activation_limit(bits: int) -> int:
    """The largest quantised activation."""
    return int(2 ** (bits - 1) - 1)


def rounded_values(values: torch.Tensor, counts_R: torch.Tensor) -> torch.Tensor:
    """Kept values [n] on the grid of their row.

    Args:
        values: row-major.
        counts_R: how many of them each row has, int64.
    """
    with torch.no_grad():
        if not values.numel():
            tops_R = values.new_zeros(len(counts_R))
        else:
            tops_R = torch.segment_reduce(values.abs(), "max", lengths=counts_R, initial=0.0)
        step_R, inverse_R = _row_grid(tops_R)
        steps, inverses = (grid.repeat_interleave(counts_R) for grid in (step_R, inverse_R))
        rounded = _on_grid(values, steps, inverses)
    return _through(values, rounded)


def rounded_weight(weight: torch.Tensor) -> torch.Tensor:
    """A dense weight, seen as [R, K], on the grid of each row."""
    with torch.no_grad():
        matrix_RK = weight.flatten(1)
        if matrix_RK.numel():
            tops_R1 = matrix_RK.abs().amax(dim=1, keepdim=True)
        else:
            tops_R1 = matrix_RK.new_zeros(len(matrix_RK), 1)
        rounded = _on_grid(matrix_RK, *_row_grid(tops_R1)).view_as(weight)
    return _through(weight, rounded)


def rounded_activations(x: torch.Tensor, bits: int, num_dims: int = 1) -> torch.Tensor:
    """Activations on the grid of their token: the last dimension, or the last `num_dims`."""
    limit = activation_limit(bits)
    if not x.numel():
        return x
    with torch.no_grad():
        top = x.abs().amax(dim=tuple(range(-num_dims, 0)), keepdim=True)
        is_zero = top < _SMALLEST_TOP
        # A quotient of two tensors: torch turns `number / tensor` into another rounding.
        inverse = torch.where(is_zero, 0.0, torch.full_like(top, limit) / top)
        step = torch.where(is_zero, 1.0, top / limit)
        rounded = (x * inverse).clamp(-limit, limit).round() * step
    return _through(x, rounded)


def rounded_by_scale(x: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    """Activations in steps of one `scale`, clamped; the gradient also reaches the scale (LSQ).

    The scale's gradient is divided by sqrt(elements x limit), so that it moves as fast as a weight.
    """
    limit = activation_limit(bits)
    share = 1.0 / math.sqrt(max(1, x.numel()) * limit)
    # The value of `scale`, the gradient times `share`.
    damped = scale.detach() + (scale - scale.detach()) * share
    inside = (x * (torch.ones_like(damped) / damped)).clamp(-limit, limit)
    return (inside + (inside.round() - inside).detach()) * damped


def best_scale(magnitudes: torch.Tensor, bits: int) -> float:
    """The scale with the least squared rounding and clamping error of a sample of |x|."""
    limit = activation_limit(bits)
    top = float(magnitudes.max()) if magnitudes.numel() else 0.0
    if not _SMALLEST_TOP <= top < math.inf:
        return 1.0
    scales = top / limit * torch.linspace(1.0 / _CANDIDATES, 1.0, _CANDIDATES)
    errors = [
        float(((magnitudes / scale).clamp(max=limit).round() * scale - magnitudes).square().mean())
        for scale in scales
    ]
    return float(scales[errors.index(min(errors))])


def _row_grid(tops: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Step (as the kernels round it) and inverse step of rows with these largest values."""
    tops = tops.double()
    is_zero = tops <= 0
    step = torch.where(is_zero, 1.0, tops / _WEIGHT_LIMIT)
    return step.float(), torch.where(is_zero, 0.0, torch.full_like(tops, _WEIGHT_LIMIT) / tops)


def _on_grid(values: torch.Tensor, step: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    return ((values * inverse).round() * step).to(values.dtype)


def _through(x: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _StraightThrough.apply(x, rounded)  # type: ignore[no-untyped-call]
    return result
