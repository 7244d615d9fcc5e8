# SPDX-License-Identifier: Apache-2.0
"""Train, prune, go back, again (arXiv 1803.03635, 1912.05671, 2003.02389).

One training lasts `length` steps, of which rounds after the first repeat those from `to` on. After
round r of R a fraction density^(r/R) is kept.
"""

from typing import Literal

import torch

from gossamer.pruning.schedules.allocation import best_masks, magnitudes, on_the_way
from gossamer.pruning.schedules.base import Event, Schedule, State

Rewind = Literal["init", "step", "lr", "finetune"]


class Iterative(Schedule):
    """Iterative pruning by magnitude with rewinding.

    `init` and `step` restore all parameters, buffers and the optimizer's state of step 0 or `to`,
    within the mask. The learning rate belongs to the loop: each event "rewind" says in
    `details["lr_step"]` at which step of one training its schedule goes on.
    """

    kind = "iterative"

    def __init__(
        self, *, density: float, budget: str, rounds: int, rewind: Rewind, to: int, length: int
    ) -> None:
        self._density, self._budget, self._rounds = density, budget, rounds
        self._rewind, self._to, self._length = rewind, to, length
        self._weights: dict[str, torch.Tensor] = {}
        self._slots: dict[str, dict[str, torch.Tensor | float]] = {}

    def start(self) -> list[Event]:
        """Remember the weights if this is where rounds go back to."""
        on_the_way(self.run.pattern, self._density, self.kind)
        self._remember(0)
        return []

    def update(self, step: int) -> list[Event]:
        """Prune and go back at the end of each round."""
        self._remember(step)
        number = self._round_ending_at(step)
        if number is None:
            return []
        run = self.run
        density = self._density ** (number / self._rounds)
        last = number == self._rounds
        pattern = run.pattern if last else on_the_way(run.pattern, density, self.kind)
        scores = magnitudes(run.layers)
        run.change(best_masks(run, self._budget, density, scores, pattern), pattern)
        events = [run.event(step, "mask", round=number)]
        lr_step = self._length if self._rewind == "finetune" else self._to
        if self._weights:
            self._restore()
        events.append(run.event(step, "rewind", mode=self._rewind, lr_step=lr_step, round=number))
        if last:
            self._weights, self._slots = {}, {}
        return events

    def is_settled(self, step: int) -> bool:
        """After the last round."""
        return step >= self._length + (self._rounds - 1) * (self._length - self._to)

    def state_dict(self) -> State:
        """The remembered weights and optimizer state."""
        return {
            "weights": {name: tensor.clone() for name, tensor in self._weights.items()},
            "slots": {name: dict(slots) for name, slots in self._slots.items()},
        }

    def load_state_dict(self, state: State, step: int) -> None:
        """As `state_dict` gave it."""
        self._weights = {name: tensor.clone() for name, tensor in state["weights"].items()}
        self._slots = {name: dict(slots) for name, slots in state["slots"].items()}

    def _round_ending_at(self, step: int) -> int | None:
        number, rest = divmod(step - self._length, self._length - self._to)
        return number + 1 if rest == 0 and 0 <= number < self._rounds else None

    def _remember(self, step: int) -> None:
        if self._rewind not in ("init", "step") or step != self._to or step > self._length:
            return
        model, optimizer = self.run.model, self.run.entries.optimizer
        self._weights = {
            name: tensor.detach().clone() for name, tensor in self._tensors() if tensor is not None
        }
        self._slots = {
            name: {
                key: value.clone() if isinstance(value, torch.Tensor) else value
                for key, value in optimizer.state.get(parameter, {}).items()
                if value is not None
            }
            for name, parameter in model.named_parameters()
        }

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        model = self.run.model
        masks = ("mask_bits", "_mask")
        buffers = [b for b in model.named_buffers() if b[0].rsplit(".", 1)[-1] not in masks]
        return [*model.named_parameters(), *buffers]

    @torch.no_grad()
    def _restore(self) -> None:
        run = self.run
        optimizer = run.entries.optimizer
        for name, tensor in self._tensors():
            tensor.data.copy_(self._weights[name])
        for name, parameter in run.model.named_parameters():
            slots = self._slots[name]
            if not slots:
                optimizer.state.pop(parameter, None)
                continue
            optimizer.state[parameter] = {
                key: value.clone() if isinstance(value, torch.Tensor) else value
                for key, value in slots.items()
            }
        for layer in run.layers:
            pruned = layer.shaped(~layer.mask)
            layer.weight.data.masked_fill_(pruned, 0.0)
            run.entries.reset(layer.weight, pruned)
