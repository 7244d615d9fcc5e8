# SPDX-License-Identifier: Apache-2.0
"""Train, prune, go back, again (arXiv 1803.03635, 1912.05671, 2003.02389).

One training lasts `length` steps, of which rounds after the first repeat those from `to` on. After
round r of R a fraction density^(r/R) is kept.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_map_only

from gossamer.pruning.schedules.base import Events, Schedule, State

Rewind = Literal["init", "step", "lr", "finetune"]


@dataclass(eq=False, kw_only=True)
class Iterative(Schedule):
    """Iterative pruning by magnitude with rewinding.

    `init` and `step` restore all parameters, buffers and the optimizer's state of step 0 or `to`,
    within the mask. The learning rate belongs to the loop: each event "rewind" says in
    `details["lr_step"]` at which step of one training its schedule continues.
    """

    rounds: int
    rewind: Rewind
    to: int
    length: int
    kind = "iterative"
    _weights: dict[str, torch.Tensor] = field(init=False, default_factory=dict)
    _slots: dict[str, dict[str, Any]] = field(init=False, default_factory=dict)

    def start(self) -> Events:
        """Remember the weights if this is where rounds go back to."""
        self.pattern_at(self.density)
        self._remember(0)
        return []

    def update(self, step: int) -> Events:
        """Prune and go back at the end of each round."""
        self._remember(step)
        number, rest = divmod(step - self.length, self.length - self.to)
        number += 1
        if rest or not 1 <= number <= self.rounds:
            return []
        run = self.run
        self.prune(None, number, self.rounds)
        events = [run.event(step, "mask", round=number)]
        if self._weights:
            self._restore()
        lr_step = self.length if self.rewind == "finetune" else self.to
        events.append(run.event(step, "rewind", mode=self.rewind, lr_step=lr_step, round=number))
        if number == self.rounds:
            self._weights, self._slots = {}, {}
        return events

    def is_settled(self, step: int) -> bool:
        """After the last round."""
        return step >= self.length + (self.rounds - 1) * (self.length - self.to)

    def state_dict(self) -> State:
        """The remembered weights and optimizer state."""
        return _copied({"weights": self._weights, "slots": self._slots})

    def load_state_dict(self, state: State, step: int) -> None:
        """As `state_dict` gave it."""
        held = _copied(state)
        self._weights, self._slots = held["weights"], held["slots"]

    def _remember(self, step: int) -> None:
        if self.rewind not in ("init", "step") or step != self.to or step > self.length:
            return
        self._weights = {name: tensor.detach().clone() for name, tensor in self._tensors()}
        state = self.run.entries.optimizer.state
        self._slots = {
            name: _copied({k: v for k, v in state.get(parameter, {}).items() if v is not None})
            for name, parameter in self.run.model.named_parameters()
        }

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        model = self.run.model
        masks = ("mask_bits", "_mask")
        buffers = [b for b in model.named_buffers() if b[0].rsplit(".", 1)[-1] not in masks]
        return [*model.named_parameters(), *buffers]

    @torch.no_grad()
    def _restore(self) -> None:
        run = self.run
        state = run.entries.optimizer.state
        for name, tensor in self._tensors():
            tensor.data.copy_(self._weights[name])
        for name, parameter in run.model.named_parameters():
            state.pop(parameter, None)
            if self._slots[name]:
                state[parameter] = _copied(self._slots[name])
        for layer in run.layers:
            pruned = layer.shaped(~layer.mask)
            layer.weight.data.masked_fill_(pruned, 0.0)
            run.entries.reset(layer.weight, pruned)


def _copied(state: State) -> State:
    """The same dicts and numbers with tensors of their own."""
    copied: State = tree_map_only(torch.Tensor, torch.clone, state)
    return copied
