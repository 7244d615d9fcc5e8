# SPDX-License-Identifier: Apache-2.0
"""What structured pruning did: its stages, the units that are left, its notes."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

# evaluate(model): higher is better.
Evaluate = Callable[[nn.Module], float]


@dataclass(frozen=True)
class StageLog:
    """One stage.

    Attributes:
        name: gradients, search, rearrange, slim, tune or refit.
        figure: its own objective: estimated rise of the loss (search, rearrange), mean relative
            error of sub-layers on the held-out quarter (tune, refit), None for the others.
        score: what `evaluate` said after it, None if it was not asked.
        kept: False if the state before it scored better and was taken back.
        seconds: time of the stage, evaluation not counted.
    """

    name: str
    figure: float | None
    score: float | None
    kept: bool
    seconds: float


@dataclass(frozen=True)
class BlockUnits:
    """Units of one block that are left, by their numbers in the dense model."""

    name: str
    heads: tuple[int, ...]
    filters: tuple[int, ...]


@dataclass(frozen=True)
class StructuredResult:
    """The slim model and how it came about.

    Attributes:
        model: the model that was given, now smaller.
        fraction: cost of the blocks that is left, of the dense one.
        stages: in order.
        blocks: what is left of every block.
        notes: sub-layers that could not be fitted, and why.
    """

    model: nn.Module
    fraction: float
    stages: tuple[StageLog, ...]
    blocks: tuple[BlockUnits, ...]
    notes: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Time of all stages."""
        return sum(stage.seconds for stage in self.stages)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the model."""
        return {
            "fraction": self.fraction,
            "seconds": self.seconds,
            "stages": [asdict(stage) for stage in self.stages],
            "blocks": [asdict(block) for block in self.blocks],
            "notes": list(self.notes),
        }
