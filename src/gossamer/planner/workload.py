# SPDX-License-Identifier: Apache-2.0
"""What is to be trained, how, and on which grid of ranks."""

import math
from dataclasses import asdict, dataclass
from typing import Literal

from gossamer.errors import InputError
from gossamer.planner.schedules import PipelineSpec, ScheduleName
from gossamer.planner.stages import Cut


@dataclass(frozen=True)
class StepSpec:
    """A training step.

    Attributes:
        batch: samples of a step, of all ranks together.
        sparsity: fraction of zeros in weights that are pruned.
        microbatch: samples that go through the pipeline together; None: every power of two.
        recompute: layers between two activations that are kept; 0 keeps all, "sqrt" takes the
            square root of the number of layers.
        cut: how the model is cut into stages.
        buckets: whether gradients are copied into buckets to be sent, as DDP does.
    """

    batch: int
    sparsity: float = 0.9
    microbatch: int | None = None
    recompute: int | Literal["sqrt"] = 0
    cut: Cut = "cost"
    buckets: bool = True

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"batch: must be at least 1, got {self.batch}.")
        if not 0 <= self.sparsity < 1:
            raise InputError(f"sparsity: must be in [0, 1), got {self.sparsity}. 90 % is 0.9.")
        if self.microbatch is not None and self.microbatch < 1:
            raise InputError(f"microbatch: must be at least 1, got {self.microbatch}.")
        if self.recompute != "sqrt" and self.recompute < 0:
            raise InputError(f"recompute: must be at least 0, got {self.recompute}.")

    @property
    def density(self) -> float:
        """Kept fraction."""
        return 1 - self.sparsity

    def interval(self, blocks: int) -> int:
        """Layers between two kept activations; 0: all are kept."""
        return max(1, round(math.sqrt(blocks))) if self.recompute == "sqrt" else self.recompute


class Summed:
    """A dataclass of numbers that are parts of a whole."""

    @property
    def total(self) -> float:
        """Of everything."""
        return float(sum(vars(self).values()))

    def to_dict(self) -> dict[str, float]:
        """The parts by name, and their sum."""
        return {**asdict(self), "total": self.total}  # type: ignore[call-overload]


@dataclass(frozen=True)
class RankGrid:
    """Ranks: replicas, stages of a pipeline, shards of a replica's state."""

    data: int
    pipeline: int
    shard: int = 1

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.data * self.pipeline * self.shard

    @property
    def batch_ways(self) -> int:
        """Into how many parts a batch is divided: shards see different samples, too."""
        return self.data * self.shard

    def __str__(self) -> str:
        return f"{self.data} x {self.pipeline} x {self.shard}"


@dataclass(frozen=True)
class RankLayout:
    """A grid with a schedule and the size of a microbatch."""

    grid: RankGrid
    schedule: ScheduleName
    chunks: int
    microbatch: int
    microbatches: int

    @property
    def pipeline(self) -> PipelineSpec:
        """As it is simulated."""
        return PipelineSpec(self.schedule, self.grid.pipeline, self.microbatches, self.chunks)

    @property
    def stages(self) -> int:
        """Of the whole pipeline."""
        return self.grid.pipeline * self.chunks
