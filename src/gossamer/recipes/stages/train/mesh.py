# SPDX-License-Identifier: Apache-2.0
"""`mesh:` of a `train` stage: the grid of processes, and how they talk."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gossamer.recipes.base import Batch, Settings
from gossamer.training.distributed import MeshSizes

_Ranks = Annotated[int, Field(ge=1, le=2**16)]


class TableMesh(Settings):
    """How touched rows of tables travel between replicas."""

    wire: Literal["full", "int8", "int4"] = "full"
    """Numbers as they are, or integers with one scale per table."""
    rounding: Literal["nearest", "stochastic"] = "nearest"
    """Of integers; stochastic: right on average."""
    route: Literal["auto", "gather", "owner"] = "auto"
    """gather: rows go to all ranks; owner: to one rank each, sums to all; auto: fewer bytes."""
    shard: Literal["none", "auto", "table", "row"] = "none"
    """Data ranks share tables: whole ones, ranges of rows, or by size; none: each has all."""


class Mesh(Settings):
    """Ranks along each axis; their product is the number of processes torchrun starts."""

    model_config = ConfigDict(strict=False)

    data: _Ranks = 1
    """Replicas with different samples."""
    pipeline: _Ranks = 1
    """Stages of layers."""
    shard: _Ranks = 1
    """Parts of every parameter, with different samples."""
    tensor: _Ranks = 1
    """Parts of the heads and filters of every block."""
    expert: _Ranks = 1
    """Parts of the experts of every mixture, with different samples."""
    microbatches: Batch | None = None
    """Of a rank's samples in a pipeline; null: two per stage where they divide."""
    schedule: Literal[
        "gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v", "message-driven"
    ] = "1f1b"
    """Of the pipeline."""
    wire: Literal["full", "bf16"] = "full"
    """Gradients between replicas: as they are, or rounded to bf16."""
    tables: TableMesh = TableMesh()
    """Touched rows of tables between replicas."""
    timeout: float = Field(default=60.0, gt=0.0, le=86400.0)
    """Seconds of silence that end a step."""
    start_timeout: float = Field(default=600.0, gt=0.0, le=86400.0)
    """Seconds until all ranks have come; also for checkpoints and evaluations."""
    heartbeat: float = Field(default=5.0, gt=0.0, le=3600.0)
    """Seconds between two signs of life."""

    @property
    def sizes(self) -> MeshSizes:
        """The five numbers."""
        return MeshSizes(self.data, self.pipeline, self.shard, self.tensor, self.expert)

    def num_microbatches(self, batch: int) -> int:
        """Of a batch of this many samples on all ranks."""
        if self.microbatches is not None or self.pipeline == 1:
            return self.microbatches or 1
        per_part = batch // self.sizes.num_parts
        wanted = (2 * self.pipeline, self.pipeline)
        return next((count for count in wanted if per_part % count == 0), 1)
