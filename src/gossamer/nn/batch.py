# SPDX-License-Identifier: Apache-2.0
"""One call of a model: what goes in, whatever form users have it in, and what comes out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Batch:
    """One call of the model.

    Attributes:
        arguments: a mapping holds keyword arguments, a list or tuple arguments, else one argument.
        keep: bool [B, T], False where a position is padding; None if there is none.
        labels: what a loss compares the output with; None if it needs nothing.
        samples: a number per row of the inputs, the same in every epoch: what a teacher says of a
            row is then remembered. None: nothing is remembered.
    """

    arguments: Any
    keep: torch.Tensor | None = None
    labels: torch.Tensor | None = None
    samples: tuple[int, ...] | None = None

    def run(self, model: nn.Module) -> Any:
        """The model's output on this batch."""
        return call_on_batch(model, self.arguments)

    def first_tensor(self) -> torch.Tensor | None:
        """The first tensor that the model gets: token ids, or an image."""
        return first_tensor(self.arguments)

    def call(self, model: nn.Module) -> Callable[[], Any]:
        """The same as `run`, later."""
        return lambda: self.run(model)


def call_on_batch(model: nn.Module, batch: Any) -> Any:
    """Call the model: a mapping holds keyword arguments, a list or tuple arguments, else one."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, list | tuple):
        return model(*batch)
    return model(batch)


def first_tensor(values: Any) -> torch.Tensor | None:
    """A tensor, or the first one of a tuple, list or mapping; input_ids before all others."""
    if isinstance(values, torch.Tensor):
        return values
    if isinstance(values, Mapping):
        ids = values.get("input_ids")
        values = list(values.values()) if ids is None else [ids]
    if not isinstance(values, list | tuple):
        return None
    return next((value for value in values if isinstance(value, torch.Tensor)), None)


def named_tensor(outputs: Any, name: str) -> torch.Tensor | None:
    """The output of that name; None if there is none, or it is no tensor."""
    found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    return found if isinstance(found, torch.Tensor) else None


def rows_of(output: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """[rows, D]: one row per sample or position that is not padding."""
    if keep is not None and output.ndim > keep.ndim and output.shape[: keep.ndim] == keep.shape:
        output = output[keep]
    return output.reshape(-1, output.shape[-1])
