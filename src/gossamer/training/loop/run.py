# SPDX-License-Identifier: Apache-2.0
"""One training run: what is trained on what, how, and what it reports to.

`Control` is what the loop asks of a sparsity schedule; `gossamer.attach` gives one. `train` never
imports `prune`: the loop receives an object that behaves like it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from gossamer.data import Batches
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.surgery.optimizer_state import Part
from gossamer.training.checkpoint import CheckpointWriter
from gossamer.training.growth import GrowthWatch
from gossamer.training.loop.settings import LoopSettings
from gossamer.training.optim.gradients import step_gradient
from gossamer.training.optim.scaling import LossScaler
from gossamer.training.run_files import Sink


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


# loss(model, batch) -> the loss, or the loss and numbers to log beside it.
Objective = Callable[[nn.Module, Any], torch.Tensor | tuple[torch.Tensor, Mapping[str, float]]]
Evaluate = Callable[[nn.Module], Mapping[str, float]]
# progress(steps done, steps of the run)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Surroundings:
    """What a run reports to, and where it is kept.

    Attributes:
        evaluate: named numbers of a model, in eval mode and without gradients; they are logged.
        watch: more of them, for curves: they decide nothing, and their time does not count.
        writer: where checkpoints go; None writes none.
        run: what the run is, as JSON data, kept in checkpoints.
        sinks: get every record.
        progress: called after every step.
        example: an input of the model, for measuring the modes of convolutions.
        clock: seconds, for minutes.
    """

    evaluate: Evaluate | None = None
    watch: Evaluate | None = None
    writer: CheckpointWriter | None = None
    run: Mapping[str, Any] = field(default_factory=dict)
    sinks: tuple[Sink, ...] = ()
    progress: Progress | None = None
    example: torch.Tensor | None = None
    clock: Callable[[], float] = time.monotonic


@dataclass(eq=False)
class TrainingRun:
    """What the loop, its processes and its watches share of one run.

    Attributes:
        model: trained in place.
        optimizer: holds its parameters.
        objective: the loss of a batch.
        batches: the data, by number.
        settings: how the loop runs.
        control: the sparsity schedule.
        around: what the run reports to, and where it is kept.
        growth: when the model becomes larger.
        step: optimizer steps taken.
        taken: batches taken.
        skipped: batches whose gradients were not finite.
        scaler: of the loss, in precision "fp16".
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Objective
    batches: Batches
    settings: LoopSettings
    control: Control
    around: Surroundings
    growth: GrowthWatch
    step: int = 0
    taken: int = 0
    skipped: int = 0
    scaler: LossScaler | None = None

    @property
    def is_settled(self) -> bool:
        """Whether neither the masks nor the size of the model will change any more."""
        return self.control.is_settled and not self.growth.is_pending

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer holds."""
        return [param for group in self.optimizer.param_groups for param in group["params"]]

    @property
    def gradients(self) -> list[torch.Tensor]:
        """Of the parameters that have one; of tables the touched rows."""
        found = (self.gradient_of(param) for param in self.parameters)
        return [numbers for numbers in found if numbers is not None]

    def gradient_of(self, param: nn.Parameter) -> torch.Tensor | None:
        """The numbers of a parameter's gradient, to be read or changed in place."""
        return step_gradient(self.optimizer, param)
