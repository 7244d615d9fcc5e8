# SPDX-License-Identifier: Apache-2.0
"""What a schedule is: the part of a controller that knows when masks move, and where to.

Steps count optimizer steps: step 0 is before the first one, `update(1)` comes after it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gossamer.pruning.schedules.run import Run

# What state dicts and events may hold: tensors go to safetensors, the rest to JSON.
State = dict[str, Any]


@dataclass(frozen=True)
class Event:
    """Something a schedule did.

    Attributes:
        step: the optimizer steps done so far.
        kind: "mask" (masks moved), "dense" (all weights are back), "rewind" (weights or learning
            rate went back; `details["lr_step"]` is the step whose learning rate comes next),
            "distance" (an Early-Bird look), "ticket" (its mask is drawn), "postponed" (gradients
            were not finite, tried again one step later).
        sparsity: of the pruned layers, afterwards.
        details: numbers and texts that belong to the kind.
    """

    step: int
    kind: str
    sparsity: float
    details: dict[str, float | int | str | bool] = field(default_factory=dict)

    def to_dict(self) -> State:
        """As JSON takes it."""
        return {
            "step": self.step,
            "kind": self.kind,
            "sparsity": self.sparsity,
            "details": dict(self.details),
        }


class Schedule(ABC):
    """When masks move. Settings are given on construction, in steps; `run` holds the rest.

    A schedule changes masks through `run.change(...)` only, which keeps weights and optimizer state
    in order.
    """

    kind: str
    # Whether a pruned weight may come back, which not every optimizer can follow.
    grows = False
    run: "Run"

    @abstractmethod
    def start(self) -> list[Event]:
        """Called once when attached, with all layers dense."""

    @abstractmethod
    def update(self, step: int) -> list[Event]:
        """Called after optimizer step number `step`, until it is settled."""

    @abstractmethod
    def is_settled(self, step: int) -> bool:
        """Whether masks never move again after `step`."""

    def wants_gradients(self, step: int) -> bool:
        """Whether `update(step)` will read dense gradients; asked before that backward pass."""
        return False

    def penalty(self) -> torch.Tensor | None:
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
