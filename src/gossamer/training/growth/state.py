# SPDX-License-Identifier: Apache-2.0
"""The state of an optimizer for a parameter that has grown.

Means of gradients fall with the gradient, means of squares with its square; step counts stay.
Anything else has no rule and is refused before anything changes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.training.growth.tensors import Quantity
from gossamer.training.optim import SmallStateOptimizer

# Grow a tensor of the old parameter's shape to the new one's.
Grow = Callable[[torch.Tensor, Quantity], torch.Tensor]

# Of torch's optimizers and of gossamer's. Factored second moments are rows and columns of a square.
_QUANTITIES: dict[str, Quantity] = {
    "exp_avg": "mean",
    "momentum_buffer": "mean",
    "grad_avg": "mean",
    "exp_avg_sq": "square",
    "max_exp_avg_sq": "square",
    "square_avg": "square",
    "sum": "square",
    "variance": "square",
    "row_var": "square",
    "col_var": "square",
}


def check_growable(optimizer: torch.optim.Optimizer, named: dict[nn.Parameter, str]) -> None:
    """Raise InputError if the state of a parameter holds something without a rule."""
    held = {p for group in optimizer.param_groups for p in group["params"]}
    for param in held - named.keys():
        raise InputError(
            f"grow: the optimizer holds a parameter of shape {list(param.shape)} that is not in"
            " the model. Give the optimizer of this model."
        )
    if isinstance(optimizer, SmallStateOptimizer):
        return
    for param, state in optimizer.state.items():
        for key, value in state.items():
            is_scalar = not isinstance(value, torch.Tensor) or value.ndim == 0
            if not is_scalar and key not in _QUANTITIES:
                raise InputError(
                    f"grow: {type(optimizer).__name__} keeps {key!r} for {named[param]}, and there"
                    " is no rule for how it grows. Use AdamW, SGD, LAMB, LARS or Adafactor, or"
                    " state='reset'."
                )


def master_of(optimizer: torch.optim.Optimizer | None, param: nn.Parameter) -> torch.Tensor:
    """The parameter in the precision in which it is trained."""
    if isinstance(optimizer, SmallStateOptimizer) and param in optimizer.state:
        return optimizer.master_of(param)
    return param.detach()


def is_split(optimizer: torch.optim.Optimizer | None, param: nn.Parameter) -> bool:
    """Whether the master of a parameter lies in the optimizer, wholly or in part."""
    small = isinstance(optimizer, SmallStateOptimizer) and param in optimizer.state
    if small and param.dtype is torch.float16:
        raise InputError("grow: float16 parameters with masters are not grown. Use bfloat16.")
    return small and param.dtype is torch.bfloat16


def grown_state(
    optimizer: torch.optim.Optimizer, old: nn.Parameter, grow: Grow
) -> dict[str, Any]:
    """Moments and step count of `old` after growth; masters are split again by the optimizer."""
    state = optimizer.state.get(old, {})
    if not isinstance(optimizer, SmallStateOptimizer):
        # RMSprop averages steps, which were divided by their size already.
        own: dict[str, Quantity] = {}
        if isinstance(optimizer, torch.optim.RMSprop):
            own = {"momentum_buffer": "step"}
        rules = _QUANTITIES | own
        return {key: _grown(value, old, grow, rules.get(key)) for key, value in state.items()}
    grown = {key: value.clone() for key, value in state.items() if key == "step"}
    for moment in optimizer.MOMENTS:
        if moment.key in state:
            quantity = _QUANTITIES[moment.key]
            grown |= moment.mapped(state, lambda t, q=quantity: grow(t, q))
    return grown


def _grown(value: Any, old: nn.Parameter, grow: Grow, quantity: Quantity | None) -> Any:
    if not isinstance(value, torch.Tensor) or value.ndim == 0 or quantity is None:
        return value.clone() if isinstance(value, torch.Tensor) else value
    whole = grow(value.expand(old.shape), quantity)
    if value.shape == old.shape:
        return whole
    # Rows or columns of a factored moment: alike along the other side.
    picks = tuple(
        slice(None) if have == want else slice(0, 1)
        for have, want in zip(value.shape, old.shape, strict=True)
    )
    return whole[picks].clone()
