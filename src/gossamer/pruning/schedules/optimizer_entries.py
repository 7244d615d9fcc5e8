# SPDX-License-Identifier: Apache-2.0
"""The optimizer's memory of single weights: cleared where a weight leaves or joins the training.

Survivors are not touched, bit for bit. A weight that joins starts as a new Parameter would: its
slots are zero and, with Adam, its own steps are counted (`late_weights`).
"""

from typing import Protocol, runtime_checkable

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.surgery.optimizer_state import check_state
from gossamer.pruning.schedules.late_weights import YoungWeights

# Zero slots are the fresh state of each of these; Adam's step count is seen to by YoungWeights.
_KNOWN = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)


@runtime_checkable
class FollowsMasks(Protocol):
    """An optimizer that clears its own slots, so that weights may join in the middle of a run."""

    def reset_entries(self, parameter: nn.Parameter, where: torch.Tensor) -> None:
        """Make the entries of bool `where` (of the parameter's shape) as good as new."""


class OptimizerEntries:
    """One optimizer and the entries of its state that belong to masked weights.

    Args:
        model: holds the weights.
        optimizer: trains them.
        grows: whether weights will join in the middle of the run.

    Attributes:
        young: weights whose own steps Adam must count; none with other optimizers.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, grows: bool) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(
                f"optimizer: expected a torch optimizer, got {type(optimizer).__name__}."
            )
        if grows and not isinstance(optimizer, (*_KNOWN, FollowsMasks)):
            known = ", ".join(kind.__name__ for kind in _KNOWN)
            raise InputError(
                f"optimizer: this schedule lets weights come back, and what a fresh weight looks"
                f" like in {type(optimizer).__name__} is not known. Use {known}, give it a method"
                " reset_entries(parameter, where), or take a schedule that only prunes."
            )
        self.optimizer = optimizer
        self.young = YoungWeights(model, optimizer, grows)

    def check(self, name: str, parameter: nn.Parameter) -> None:
        """Raise InputError if the state of `parameter` cannot follow a mask."""
        if not isinstance(self.optimizer, FollowsMasks):
            check_state(self.optimizer, parameter, f"{name}.weight")

    def move(
        self, name: str, parameter: nn.Parameter, dropped: torch.Tensor, grown: torch.Tensor
    ) -> None:
        """Entries leave and join, bool tensors of the parameter's shape."""
        self.reset(parameter, dropped | grown)
        self.young.move(name, parameter, dropped, grown)

    def forget(self, name: str, parameter: nn.Parameter) -> None:
        """The whole Parameter starts anew."""
        self.optimizer.state.pop(parameter, None)
        self.young.clear(name)

    def reset(self, parameter: nn.Parameter, where: torch.Tensor) -> None:
        """Zero all slots at bool `where`, of the parameter's shape."""
        if isinstance(self.optimizer, FollowsMasks):
            self.optimizer.reset_entries(parameter, where)
            return
        for value in self.optimizer.state.get(parameter, {}).values():
            if isinstance(value, torch.Tensor) and value.ndim and value.shape == parameter.shape:
                value.masked_fill_(where, 0)
