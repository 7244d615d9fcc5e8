# SPDX-License-Identifier: Apache-2.0
"""Calibration batches in the forms users have them, and which of their positions count."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError


@dataclass(frozen=True)
class Batch:
    """One call of the model.

    Attributes:
        arguments: a mapping holds keyword arguments, a list or tuple arguments, else one argument.
        keep: bool [B, T], False where a position is padding; None if there is none.
        labels: what a loss compares the output with; None if it needs nothing.
    """

    arguments: Any
    keep: torch.Tensor | None = None
    labels: torch.Tensor | None = None

    def run(self, model: nn.Module) -> Any:
        """The model's output on this batch."""
        return call_on_batch(model, self.arguments)

    def first_tensor(self) -> torch.Tensor | None:
        """The first tensor that the model gets: token ids, or an image."""
        values = self.arguments
        if isinstance(values, Mapping):
            values = list(values.values())
        elif not isinstance(values, list | tuple):
            values = [values]
        return next((value for value in values if isinstance(value, torch.Tensor)), None)

    def call(self, model: nn.Module) -> Callable[[], Any]:
        """The same, later."""
        return lambda: self.run(model)


def as_batches(data: Iterable[Any] | None, asker: str) -> list[Batch]:
    """All batches of `data`, held together; a mapping's attention_mask says what is padding."""
    if data is None:
        raise InputError(f"{asker} needs calibration data: give batches with data=[...].")
    if isinstance(data, torch.Tensor | Mapping | str):
        raise InputError(
            f"data: expected a list of batches, got one {type(data).__name__}. Write data=[batch]."
        )
    batches = [item if isinstance(item, Batch) else Batch(item, _padding(item)) for item in data]
    if not batches:
        raise InputError(f"data: is empty, but {asker} needs at least one batch.")
    return batches


def _padding(arguments: Any) -> torch.Tensor | None:
    mask = arguments.get("attention_mask") if isinstance(arguments, Mapping) else None
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
        return None
    return mask.bool()


def call_on_batch(model: nn.Module, batch: Any) -> Any:
    """Call the model: a mapping holds keyword arguments, a list or tuple arguments, else one."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, list | tuple):
        return model(*batch)
    return model(batch)
