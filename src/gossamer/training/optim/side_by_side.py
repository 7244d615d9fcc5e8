# SPDX-License-Identifier: Apache-2.0
"""Two optimizers as one: rows of tables by the first that fits them, everything else by another."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.surgery.optimizer_state import Convert, convert_state


class SideBySide(torch.optim.Optimizer):
    """Optimizers that step together; to the loop, checkpoints and `zero_grad` they are one.

    Groups and state are shared: what is changed here is changed in the optimizer that holds it.

    Args:
        optimizers: each with parameters of its own; groups keep this order.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        groups = [group for each in optimizers for group in each.param_groups]
        held = [param for group in groups for param in group["params"]]
        if len({id(param) for param in held}) != len(held):
            raise InputError("SideBySide: a parameter is held by two of the optimizers.")
        super().__init__(groups, {})
        # torch copies the groups it is given.
        self.param_groups = groups
        self.optimizers = tuple(optimizers)
        for each in self.optimizers:
            # Adagrad makes its state when it is built.
            self.state.update(each.state)
        self._share()

    def _share(self) -> None:
        """Let the optimizers hold the groups and the state of this one, not copies."""
        begin = 0
        for each in self.optimizers:
            end = begin + len(each.param_groups)
            each.param_groups, each.state = self.param_groups[begin:end], self.state
            begin = end

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "optimizers": self.optimizers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # torch's load_state_dict puts new groups and a new state into place.
        super().__setstate__(state)
        self._share()

    def mapped_state(self, param: nn.Parameter, convert: Convert) -> dict[str, Any]:
        """The state of `param` at other positions, as the optimizer that holds it moves it."""
        for each in self.optimizers:
            if any(param is held for group in each.param_groups for held in group["params"]):
                return convert_state(each, param, convert)
        return {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As each of them does it: gradients of codes are no `.grad`."""
        for each in self.optimizers:
            each.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each; the loss if a closure is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Said out loud, or torch warns where it makes a sparse tensor of touched rows.
        unchecked: Any = torch.sparse.check_sparse_tensor_invariants
        with unchecked(enable=False):
            for each in self.optimizers:
                each.step()
        return loss
