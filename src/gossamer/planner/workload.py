# SPDX-License-Identifier: Apache-2.0
"""What is to be trained, how, on which grid of ranks, and the model cut into stages."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from gossamer.errors import InputError
from gossamer.planner.model_shape import ModelShape, Unit
from gossamer.planner.pipeline_orders import PipelineSpec, ScheduleName
from gossamer.training.distributed import TableWire, partition

Cut = Literal["cost", "even"]
# What equal stages have equal parts of.
_SHARED = ("prunable", "rest", "flops_prunable", "flops_rest", "flops_again", "blocks", "saved")


@dataclass(frozen=True)
class StageShape:
    """Sums over the units of a stage; counts may be fractions where ends are spread evenly.

    Attributes:
        prunable: entries that a mask may cover.
        rest: other parameters.
        flops_prunable: forward operations per token in products with prunable weights.
        flops_rest: other forward operations per token.
        flops_again: forward operations per token that recomputation repeats.
        blocks: layers.
        saved: numbers per token that the backward pass needs, without recomputation.
        saved_block: the same of one layer.
        saved_end: the same of what is not a layer, the head in the first place.
        output: numbers per token that go to the next stage.
        largest: entries of the largest prunable weight.
        tied: parameters that another stage holds, too; their gradients are added.
        of_experts: of `prunable`, entries of experts that ranks can share.
        routed: numbers per token that go to experts.
    """

    prunable: float
    rest: float
    flops_prunable: float
    flops_rest: float
    flops_again: float
    blocks: float
    saved: float
    saved_block: float
    saved_end: float
    output: float
    largest: int
    tied: float = 0.0
    of_experts: float = 0.0
    routed: float = 0.0

    def of_rank(self, ranks: int) -> "StageShape":
        """What one of so many ranks holds that share the experts."""
        gone = self.of_experts * (1 - 1 / ranks)
        return replace(self, prunable=self.prunable - gone, of_experts=self.of_experts - gone)


def weights_of(stages: Sequence[StageShape]) -> tuple[float, float]:
    """Prunable entries and other parameters of stages together."""
    return sum(stage.prunable for stage in stages), sum(stage.rest for stage in stages)


def cut_stages(
    shape: ModelShape, count: int, cost: Callable[[Unit], float], how: Cut = "cost"
) -> list[StageShape] | None:
    """The model in `count` stages, or None if it has fewer layers.

    Args:
        shape: of the model.
        count: stages.
        cost: of a unit, what is balanced.
        how: "cost" makes the most expensive stage as cheap as contiguous units allow; "even" is the
            assumption of published models: equal numbers of half layers, rounded up, and ends that
            are spread over all stages.
    """
    if how == "even":
        return _even(shape, count)
    if count > sum(unit.is_block for unit in shape.units):
        return None
    return [
        _stage(shape, shape.units[start:stop])
        for start, stop in partition([cost(unit) for unit in shape.units], count)
    ]


def _stage(shape: ModelShape, units: Sequence[Unit]) -> StageShape:
    blocks = [unit for unit in units if unit.is_block]
    ends = [unit for unit in units if not unit.is_block]
    per_layer = sum(unit.is_block for unit in shape.units) / max(shape.blocks, 1)
    count = len(blocks) / max(per_layer, 1)
    saved, saved_end = (sum(unit.saved for unit in part) for part in (blocks, ends))
    # A head in another stage than the embedding it shares holds a copy of it.
    shared = shape.units[-1].tied if len(units) < len(shape.units) else 0
    is_first, is_last = units[0] is shape.units[0], units[-1] is shape.units[-1]
    return StageShape(
        prunable=sum(unit.prunable for unit in units),
        rest=sum(unit.rest for unit in units) + (shared if is_last else 0),
        flops_prunable=sum(unit.flops_prunable for unit in units),
        flops_rest=sum(unit.flops_rest for unit in units),
        flops_again=sum(unit.flops_prunable + unit.flops_rest for unit in blocks),
        blocks=count,
        saved=saved + saved_end,
        saved_block=saved / count if count else 0.0,
        saved_end=saved_end,
        output=units[-1].output,
        largest=max(unit.largest for unit in units),
        tied=shared if is_first or is_last else 0,
        of_experts=sum(unit.of_experts for unit in units),
        routed=sum(unit.routed for unit in units),
    )


def _even(shape: ModelShape, count: int) -> list[StageShape] | None:
    halves = 2 * shape.blocks
    if not 1 <= count <= halves:
        return None
    whole = _stage(shape, shape.units)
    share = -(-halves // count) / (halves / count) / count
    inner = [unit for unit in shape.units if unit.is_block][-1]
    scaled = {name: getattr(whole, name) * share for name in _SHARED}
    return [replace(whole, output=inner.output, **scaled)] * count


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
        table_wire: how touched rows of tables travel.
        id_skew: exponent of Zipf's law that ids of tables follow; 0: all are as frequent.
    """

    batch: int
    sparsity: float = 0.9
    microbatch: int | None = None
    recompute: int | Literal["sqrt"] = 0
    cut: Cut = "cost"
    buckets: bool = True
    table_wire: TableWire = "full"
    id_skew: float = 1.0

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
    """Ranks: replicas, stages of a pipeline, shards of a replica's state, shares of experts."""

    data: int
    pipeline: int
    shard: int = 1
    expert: int = 1

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.data * self.pipeline * self.shard * self.expert

    @property
    def batch_ways(self) -> int:
        """Into how many parts a batch is divided: shards and expert ranks see different samples."""
        return self.data * self.shard * self.expert

    @property
    def replicas(self) -> "RankGrid":
        """The same ranks as those of what is no expert see them: all are replicas."""
        return replace(self, data=self.data * self.expert, expert=1)

    def __str__(self) -> str:
        expert = f", expert {self.expert}" if self.expert > 1 else ""
        return f"{self.data} x {self.pipeline} x {self.shard}{expert}"


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
