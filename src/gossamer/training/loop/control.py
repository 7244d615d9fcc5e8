# SPDX-License-Identifier: Apache-2.0
"""What the training loop asks of a sparsity schedule; `gossamer.attach` gives one.

`train` never imports `prune`: the loop receives an object that behaves like this.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.surgery.optimizer_state import Part


class ScheduleEvent(Protocol):
    """Something a schedule did; `details["lr_step"]` sets the position of the learning rate."""

    @property
    def kind(self) -> str:
        """One word."""

    @property
    def sparsity(self) -> float:
        """Of the layers of the schedule, afterwards."""

    @property
    def details(self) -> Mapping[str, float | int | str | bool]:
        """Numbers and texts that belong to the kind."""


class Control(Protocol):
    """A schedule at work on a model and its optimizer."""

    @property
    def is_settled(self) -> bool:
        """Whether the masks will not move any more."""

    def step(self) -> Sequence[ScheduleEvent]:
        """Called after every `optimizer.step()`, while gradients are still there."""

    def penalty(self) -> torch.Tensor | None:
        """A term to add to the loss, or None."""
        return None

    def sparsity(self) -> float:
        """Fraction of zeros over the layers of the schedule, now."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what the schedule does next."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, masks included."""
        return

    def follow(self, parts: Mapping[nn.Parameter, Part]) -> None:
        """Masks are final and Parameters were cut: what the optimizer holds of each from now on."""
        return

    def part_of(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        """What is known of single entries of a cut Parameter, by their places in the whole one."""
        return {}

    def whole_state(
        self, parts: Mapping[nn.Parameter, Sequence[Mapping[str, torch.Tensor]]]
    ) -> dict[str, Any]:
        """`state_dict` of a model that is cut: with what `part_of` gave in all processes."""
        return {}

    def close(self) -> None:
        """Take hooks off; masks stay."""
        return


class NoControl(Control):
    """Training without a schedule: masks that are there are held and never move.

    Args:
        model: is trained.
    """

    is_settled = True

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def step(self) -> tuple[ScheduleEvent, ...]:
        """Nothing to do."""
        return ()

    def sparsity(self) -> float:
        """Fraction of zeros over the layers that have a mask; 0 if none has."""
        held = {id(layer.trained()): layer for _, layer in sparse_layers(self._model)}
        total = sum(m.matrix_shape[0] * m.matrix_shape[1] for m in held.values())
        return 1.0 - sum(m.nnz for m in held.values()) / total if total else 0.0
