# SPDX-License-Identifier: Apache-2.0
"""Carry an optimizer's state along when a Parameter changes its shape.

Optimizers keep, per Parameter, tensors of the Parameter's shape (momentum, Adam's moments) and
scalars (the step count). The first follow the weights, the second stay. Anything else cannot be
mapped and is refused before anything changes. An optimizer that keeps more (8-bit codes with one
scale for many entries) says itself how its state moves.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from gossamer.errors import InputError

__all__ = ["Convert", "Part", "check_state", "convert_state", "swap_parameter"]

Convert = Callable[[torch.Tensor], torch.Tensor]
# The Parameter that took the place of a whole one, and which entries of the flat whole it holds.
Part = tuple[nn.Parameter, torch.Tensor | slice]


@runtime_checkable
class MapsItsState(Protocol):
    """An optimizer that moves the state of a Parameter by itself."""

    def mapped_state(self, param: nn.Parameter, convert: Convert) -> dict[str, Any]:
        """The state of `param` at other positions; see `convert_state`."""
        ...


def check_state(optimizer: torch.optim.Optimizer, param: nn.Parameter, where: str) -> None:
    """Raise InputError if the state of `param` holds something that cannot be mapped."""
    if isinstance(optimizer, MapsItsState):
        return
    for key, value in optimizer.state.get(param, {}).items():
        if not _is_scalar(value) and not _follows(value, param):
            found = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise InputError(
                f"{where}: {type(optimizer).__name__} keeps state {key!r} of shape {found} for a"
                f" parameter of shape {list(param.shape)}; only scalars and tensors of that shape"
                " can be mapped. Use AdamW or SGD, or clear optimizer.state for this parameter."
            )


def convert_state(
    optimizer: torch.optim.Optimizer, param: nn.Parameter, convert: Convert
) -> dict[str, Any]:
    """The state of `param` with `convert` applied to its tensors of the parameter's shape."""
    if isinstance(optimizer, MapsItsState):
        return optimizer.mapped_state(param, convert)
    return {
        key: convert(value) if _follows(value, param) else value
        for key, value in optimizer.state.get(param, {}).items()
    }


def swap_parameter(
    optimizer: torch.optim.Optimizer, old: nn.Parameter, new: nn.Parameter, state: dict[str, Any]
) -> None:
    """Put `new` at the place of `old` in its group, with `state`; nothing if `old` is not held."""
    for group in optimizer.param_groups:
        group["params"] = [new if held is old else held for held in group["params"]]
    if optimizer.state.pop(old, None) is not None:
        optimizer.state[new] = state


def _is_scalar(value: Any) -> bool:
    # Zero dimensions, not one element: a layer with one kept weight has moments of shape [1].
    if isinstance(value, torch.Tensor):
        return value.ndim == 0
    return value is None or isinstance(value, (int, float, bool, str))


def _follows(value: Any, param: nn.Parameter) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0 and value.shape == param.shape
