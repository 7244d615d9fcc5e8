# SPDX-License-Identifier: Apache-2.0
"""What a schedule is: the part of a controller that knows when masks move, and where to.

Steps count optimizer steps: step 0 is before the first one, `update(1)` comes after it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch

from gossamer.patterns import Pattern
from gossamer.pruning.schedules.allocation import Scores, best_masks, magnitudes, on_the_way
from gossamer.pruning.schedules.moments import Window
from gossamer.pruning.schedules.run import Event, Run

# What state dicts and events may hold: tensors go to safetensors, the rest to JSON.
State = dict[str, Any]


@dataclass(eq=False, kw_only=True)
class Schedule(ABC):
    """When masks move. Settings are given on construction, in steps; `run` holds the rest.

    A schedule changes masks through `prune` and `run.change(...)` only, which keep weights and
    optimizer state in order.

    Attributes:
        density: of all layers together, once masks are settled.
        budget: how it is shared among layers.
        run: what the schedule works on, set when it is attached.
        kind: as users write it.
        grows: whether a pruned weight may come back, which not every optimizer can follow.
    """

    density: float
    budget: str
    run: Run = field(init=False, repr=False)
    kind = ""
    grows = False

    def start(self) -> list[Event]:
        """Called once when attached, with all layers dense."""
        return self.update(0)

    @abstractmethod
    def update(self, step: int) -> list[Event]:
        """Called after optimizer step number `step`, until it is settled."""

    @abstractmethod
    def is_settled(self, step: int) -> bool:
        """Whether masks never move again after `step`."""

    def wants_gradients(self, step: int) -> bool:
        """Whether `update(step)` will read dense gradients; asked before that backward pass."""
        return False

    def loss_term(self) -> torch.Tensor | None:
        """What to add to the loss of the next step."""
        return None

    def before_optimizer(self) -> None:  # noqa: B027
        """Called inside optimizer.step(), before weights change."""

    def after_optimizer(self) -> None:  # noqa: B027
        """Called inside optimizer.step(), after weights have changed."""

    def state_dict(self) -> State:
        """What a resumed run needs beside weights, masks, optimizer state and the step."""
        return {}

    def load_state_dict(self, state: State, step: int) -> None:  # noqa: B027
        """Go on from `state`, `step` steps in."""

    def best_masks(self, scores: Scores | None = None) -> list[torch.Tensor]:
        """The masks of the highest scores at the final density; by magnitude without scores."""
        run = self.run
        found = magnitudes(run.layers) if scores is None else scores
        return best_masks(run, self.budget, self.density, found)

    def prune(self, scores: Scores | None = None) -> None:
        """Give all layers their `best_masks`."""
        self.run.change(self.best_masks(scores), self.run.pattern)

    def prune_round(self, number: int, rounds: int, scores: Scores | None = None) -> None:
        """Round `number` of `rounds` keeps density^(number / rounds) of the weights."""
        run, density = self.run, self.density ** (number / rounds)
        pattern = self.pattern_at(density, number == rounds)
        found = magnitudes(run.layers) if scores is None else scores
        run.change(best_masks(run, self.budget, density, found, pattern), pattern)

    def pattern_at(self, density: float, is_last: bool = False) -> Pattern:
        """The pattern of masks of this density; InputError if only the last masks can have one."""
        pattern = self.run.pattern
        return pattern if is_last else on_the_way(pattern, density, self.kind)


@dataclass(eq=False, kw_only=True)
class WindowedSchedule(Schedule):
    """Masks move at the steps of a window and are settled at its end.

    Attributes:
        window: when something happens.
    """

    window: Window

    def is_settled(self, step: int) -> bool:
        """From the end of the window on."""
        return step >= self.window.end
