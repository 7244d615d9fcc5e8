# SPDX-License-Identifier: Apache-2.0
"""Which rank of a pipeline holds which stages, as far as laying out a model needs to know."""

from typing import Protocol

from torch import nn


class StagePlan(Protocol):
    """Stages of a model, given to the ranks of a pipeline."""

    def modules(self, model: nn.Module, rank: int) -> list[nn.Module]:
        """The stages of one rank, over Parameters of `model`."""

    def ranks_of(self, name: str) -> tuple[int, ...]:
        """The ranks that hold a parameter of the whole model; more than one if it is tied."""
