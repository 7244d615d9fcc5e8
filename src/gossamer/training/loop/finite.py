# SPDX-License-Identifier: Apache-2.0
"""NaN and Inf gradients: found before the optimizer sees them, and named by layer.

One NaN element makes AdamW's moments and the weight NaN for good, without an error.
"""

from collections.abc import Iterable

import torch
from torch import nn


def gradient_norm(parameters: Iterable[torch.Tensor]) -> float:
    """The 2-norm of all gradients together; NaN or Inf if any element is."""
    grads = _gradients(parameters)
    return float(nn.utils.get_total_norm(grads)) if grads else 0.0


def scale_gradients(parameters: Iterable[torch.Tensor], factor: float) -> None:
    """Multiply all gradients, in place."""
    grads = _gradients(parameters)
    if grads:
        torch._foreach_mul_(grads, factor)


def _gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [param.grad for param in parameters if param.grad is not None]


def not_finite_gradients(
    parameters: Iterable[tuple[str, nn.Parameter]],
) -> dict[str, tuple[int, int]]:
    """By name: elements of the gradient that are NaN or Inf, and all of them; in their order."""
    found = {}
    for name, param in parameters:
        if param.grad is not None:
            bad = int((~param.grad.isfinite()).sum())
            if bad:
                found[name] = (bad, param.grad.numel())
    return found


def describe(name: str, bad: int, total: int) -> str:
    """`layer.parameter (n of m)`."""
    return f"{name} ({bad} of {total})"
