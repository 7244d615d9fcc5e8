# SPDX-License-Identifier: Apache-2.0
"""What a training loop is given beside model, optimizer and data."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gossamer.training.checkpoint.background import CheckpointWriter
from gossamer.training.loop.metrics import Sink
from gossamer.training.loop.stopwatch import Clock

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
    clock: Clock = time.monotonic
