# SPDX-License-Identifier: Apache-2.0
"""The numbers of a gradient, wherever they are: dense, of touched rows, or raised to float32."""

import torch
from torch import nn

from gossamer.ops.table.training import row_gradient
from gossamer.training.optim.base import SmallStateOptimizer

__all__ = ["gradient_numbers", "step_gradient"]


def gradient_numbers(param: nn.Parameter) -> torch.Tensor | None:
    """The numbers of a gradient, to be read or changed in place; of a sparse one those of its rows.

    Rows that occur several times are added up first, in the gradient itself: its norm is that of
    the sum. So it is for the codes of tables that are trained without float32 rows.
    """
    if not param.is_floating_point():
        found = row_gradient(param, take=False)
        return None if found is None else found[1].values
    if param.grad is None or not param.grad.is_sparse:
        return param.grad
    if not param.grad.is_coalesced():
        param.grad = param.grad.coalesce()
    return param.grad.values()


def step_gradient(optimizer: torch.optim.Optimizer, param: nn.Parameter) -> torch.Tensor | None:
    """What a step takes of the gradient: raised to float32, or as `gradient_numbers` has it."""
    if isinstance(optimizer, SmallStateOptimizer):
        found = optimizer.gradient_of(param)
        if found is not param.grad:
            return found
    return gradient_numbers(param)
