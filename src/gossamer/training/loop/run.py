# SPDX-License-Identifier: Apache-2.0
"""One training run: what is trained on what, how, and what it reports to."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gossamer.data import Batches
from gossamer.training.checkpoint import CheckpointWriter
from gossamer.training.growth import GrowthWatch
from gossamer.training.loop.control import Control
from gossamer.training.loop.settings import LoopSettings
from gossamer.training.run_files import Sink

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
        return gradient_numbers(param)


def gradient_numbers(param: nn.Parameter) -> torch.Tensor | None:
    """The numbers of a gradient, to be read or changed in place; of a sparse one those of its rows.

    Rows that occur several times are added up first, in the gradient itself: its norm is that of
    the sum.
    """
    if param.grad is None or not param.grad.is_sparse:
        return param.grad
    if not param.grad.is_coalesced():
        param.grad = param.grad.coalesce()
    return param.grad.values()
