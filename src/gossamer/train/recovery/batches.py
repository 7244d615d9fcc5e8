# SPDX-License-Identifier: Apache-2.0
"""What a recovery step is given: inputs of a model, and what is known about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn


class Batch(Protocol):
    """One call of the model; the batches of pruning have the same form."""

    @property
    def arguments(self) -> Any:
        """A mapping holds keyword arguments, a list or tuple arguments, else one argument."""

    @property
    def keep(self) -> torch.Tensor | None:
        """Of shape [B, T], False where a position is padding; None if there is none."""

    @property
    def labels(self) -> torch.Tensor | None:
        """What a task loss compares the outputs with."""

    def run(self, model: nn.Module) -> Any:
        """The model's output."""


@dataclass(frozen=True)
class TrainingBatch:
    """A `Batch` that also says which samples it holds.

    Attributes:
        arguments: see `Batch`.
        keep: see `Batch`.
        labels: see `Batch`.
        samples: a number per row of the inputs, the same in every epoch: what a teacher says of a
            row is then remembered. None: nothing is remembered.
    """

    arguments: Any
    keep: torch.Tensor | None = None
    labels: torch.Tensor | None = None
    samples: tuple[int, ...] | None = None

    def run(self, model: nn.Module) -> Any:
        """The model's output."""
        if isinstance(self.arguments, Mapping):
            return model(**self.arguments)
        if isinstance(self.arguments, list | tuple):
            return model(*self.arguments)
        return model(self.arguments)
