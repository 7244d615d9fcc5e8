# SPDX-License-Identifier: Apache-2.0
"""The grid as five numbers, before anything is started: what they mean, and what cannot work.

Ranks count through expert fastest, then tensor, shard, pipeline and data, so that those who talk
most are neighbours. Nothing here needs torch.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from gossamer.errors import InputError

AXES = ("data", "pipeline", "shard", "tensor", "expert")


class Place(NamedTuple):
    """Where a rank stands on each axis."""

    data: int
    pipeline: int
    shard: int
    tensor: int
    expert: int = 0


@dataclass(frozen=True)
class MeshSizes:
    """How many ways a run is divided.

    Attributes:
        data: replicas that see different samples and add up their gradients.
        pipeline: stages that each hold some of the layers.
        shard: ranks that see different samples and hold a part of each parameter (FSDP).
        tensor: ranks that each hold some heads and filters of every transformer block.
        expert: ranks that see different samples and hold some experts of every mixture.
    """

    data: int = 1
    pipeline: int = 1
    shard: int = 1
    tensor: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        for axis in AXES:
            value = getattr(self, axis)
            if type(value) is not int or value < 1:
                raise InputError(f"mesh.{axis}: must be a whole number from 1, got {value!r}.")

    def __str__(self) -> str:
        # Grids without expert ranks are named as they were before there were any.
        named = AXES if self.expert > 1 else AXES[:-1]
        return ", ".join(f"{axis} {getattr(self, axis)}" for axis in named)

    @property
    def num_ranks(self) -> int:
        """Processes of the whole grid."""
        return math.prod(getattr(self, axis) for axis in AXES)

    @property
    def num_parts(self) -> int:
        """Parts a batch is cut into: data, shard and expert ranks see different samples."""
        return self.data * self.shard * self.expert

    def part(self, place: Place) -> int:
        """Which part of a batch the rank at this place sees."""
        return (place.data * self.shard + place.shard) * self.expert + place.expert

    def check_world(self, world: int) -> None:
        """Refuse a number of processes that is not the grid's."""
        if world != self.num_ranks:
            raise InputError(
                f"mesh: {self} needs {self.num_ranks} processes, but {world} were started. Start"
                f" torchrun with {self.num_ranks} in all, or change mesh."
            )

    def place(self, rank: int) -> Place:
        """Where a rank stands."""
        rank, expert = divmod(rank, self.expert)
        rank, tensor = divmod(rank, self.tensor)
        rank, shard = divmod(rank, self.shard)
        data, pipeline = divmod(rank, self.pipeline)
        return Place(data, pipeline, shard, tensor, expert)

    def rank(self, place: Place) -> int:
        """Who stands there."""
        rank = place.data * self.pipeline + place.pipeline
        rank = (rank * self.shard + place.shard) * self.tensor + place.tensor
        return rank * self.expert + place.expert


class BatchSplit(NamedTuple):
    """How one batch is shared.

    Attributes:
        batch: samples of one backward pass over all ranks, as a single process would take them.
        per_part: samples of one data, shard and expert rank.
        per_microbatch: samples that go through the pipeline at once.
    """

    batch: int
    per_part: int
    per_microbatch: int


def split_batch(sizes: MeshSizes, batch: int, microbatches: int = 1) -> BatchSplit:
    """The share of each rank; InputError with batches that work if this one does not."""
    if microbatches > 1 and sizes.pipeline == 1:
        raise InputError(
            f"mesh.microbatches: {microbatches} need a pipeline of at least 2 stages. Leave it out,"
            " or use accumulate."
        )
    unit = sizes.num_parts * microbatches
    if batch < 1 or batch % unit:
        near = sorted({max(batch // unit, 1) * unit, (batch // unit + 1) * unit})
        expert = f" x {sizes.expert} expert" if sizes.expert > 1 else ""
        raise InputError(
            f"batch: {batch} samples cannot be shared by {sizes.data} data x {sizes.shard} shard"
            f"{expert} ranks in {microbatches} microbatches: {unit} must divide it. Use"
            f" {' or '.join(map(str, near))}."
        )
    return BatchSplit(batch, batch // sizes.num_parts, batch // unit)


def picture(sizes: MeshSizes, split: BatchSplit) -> str:
    """Who does what, a line per rank; long grids are cut in the middle."""
    lines = []
    for rank in range(sizes.num_ranks):
        place = sizes.place(rank)
        first = sizes.part(place) * split.per_part
        what = [f"samples {first}-{first + split.per_part - 1} of {split.batch}"]
        if sizes.pipeline > 1:
            what.append(f"stage {place.pipeline + 1} of {sizes.pipeline}")
        if sizes.shard > 1:
            what.append(f"shard {place.shard + 1} of {sizes.shard}")
        if sizes.tensor > 1:
            what.append(f"heads and filters {place.tensor + 1} of {sizes.tensor}")
        if sizes.expert > 1:
            what.append(f"experts {place.expert + 1} of {sizes.expert}")
        lines.append(f"  rank {rank}: {', '.join(what)}")
    if len(lines) > 16:
        lines[8:-8] = [f"  ... {len(lines) - 16} more ..."]
    in_flight = split.per_part // split.per_microbatch
    head = f"grid of {sizes.num_ranks}: {sizes}"
    if sizes.pipeline > 1:
        head += f"; {in_flight} microbatches of {split.per_microbatch}"
    return "\n".join([head, *lines])
