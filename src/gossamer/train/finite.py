# SPDX-License-Identifier: Apache-2.0
"""NaN and Inf gradients: found before the optimizer sees them, and named by layer.

One NaN element makes AdamW's moments and the weight NaN for good, without an error.
"""

from collections.abc import Iterable

import torch
from torch import nn


def gradient_norm(parameters: Iterable[torch.Tensor]) -> float:
    """The 2-norm of all gradients together; NaN or Inf if any element is."""
    grads = [param.grad for param in parameters if param.grad is not None]
    if not grads:
        return 0.0
    return float(torch.nn.utils.get_total_norm(grads))


def scale_gradients(parameters: Iterable[torch.Tensor], factor: float) -> None:
    """Multiply all gradients, in place."""
    grads = [param.grad for param in parameters if param.grad is not None]
    if grads:
        torch._foreach_mul_(grads, factor)


def layers_not_finite(model: nn.Module) -> list[str]:
    """`layer.parameter (n of m)` for every gradient with NaN or Inf, in the model's order."""
    found = []
    for name, param in model.named_parameters():
        if param.grad is not None:
            bad = int((~param.grad.isfinite()).sum())
            if bad:
                found.append(f"{name} ({bad} of {param.grad.numel()})")
    return found
