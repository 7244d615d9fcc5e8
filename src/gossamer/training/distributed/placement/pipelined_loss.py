# SPDX-License-Identifier: Apache-2.0
"""An objective `loss(model, batch)` taken apart for a pipeline, without knowing its code.

The first stage needs what the objective would call the model with, the last one the loss of an
output: so it is called with a model that only notes its arguments, and with one that only returns
what is there already. It must call the model once, and its loss must be a mean over samples.
"""

from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.training.distributed.pipeline import LayerPipeline
from gossamer.training.loop import Objective
from gossamer.training.loop.processes import loss_of


class _Called(Exception):
    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.call = args, kwargs


class _NotesArguments(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise _Called(args, kwargs)


class _Returns(nn.Module):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self._output = output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._output


def inputs_of(objective: Objective, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the objective calls the model with."""
    try:
        objective(_NotesArguments(), batch)
    except _Called as seen:
        return seen.call
    raise InputError("mesh.pipeline: the loss does not call the model, so nothing can be cut.")


def loss_of_output(objective: Objective, output: Any, batch: Any) -> torch.Tensor:
    """The loss of what the model gave for a batch."""
    return loss_of(objective, _Returns(output), batch, bf16=False)[0]


class PipelinedModel(nn.Module):
    """What evaluations call: all ranks of the pipeline together, the output on each of them."""

    def __init__(self, pipeline: LayerPipeline) -> None:
        super().__init__()
        self._pipeline = pipeline

    def train(self, mode: bool = True) -> "PipelinedModel":
        """Set the mode of the stages."""
        super().train(mode)
        self._pipeline.train(mode)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The model's output."""
        return self._pipeline.predict(*args, **kwargs)
