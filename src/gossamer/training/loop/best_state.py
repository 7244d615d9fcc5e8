# SPDX-License-Identifier: Apache-2.0
"""The trained parameters as they were at the best evaluation of a run."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError


class BestState:
    """Follows one number of the evaluations; lower is better.

    Args:
        model: only parameters that take gradients are kept; their names and shapes must stay.
        name: of the number.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        self.first = self.value = math.nan
        self.step = -1
        self._name = name
        self._trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._kept: dict[str, torch.Tensor] = {}

    def look(self, step: int, quality: Mapping[str, float]) -> None:
        """Keep the parameters of now if no evaluation so far was as good."""
        if self._name not in quality:
            raise InputError(f"keep_best: the evaluation has no number {self._name!r}.")
        value = quality[self._name]
        if not self._kept:
            self.first = value
        if not self._kept or math.isnan(self.value) or value < self.value:
            self.value, self.step = value, step
            self._kept = {name: param.detach().clone() for name, param in self._trained.items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Bring the model back to it; nothing happens before the first look."""
        for name, value in self._kept.items():
            self._trained[name].copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"first": self.first, "value": self.value, "step": self.step, "kept": self._kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        kept = state["kept"]
        shapes = {name: param.shape for name, param in self._trained.items()}
        if kept and {name: tensor.shape for name, tensor in kept.items()} != shapes:
            raise ArtifactError("checkpoint: its best state is not one of this model.")
        self.first, self.value, self.step = state["first"], state["value"], state["step"]
        self._kept = dict(kept)
