# SPDX-License-Identifier: Apache-2.0
"""Every legal layout of a number of ranks, with its memory, time and traffic."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from gossamer.planner.rank_memory import RankMemory, rank_memory
from gossamer.planner.schedules import ScheduleName, schedule_fault
from gossamer.planner.simulation import Played, simulate
from gossamer.planner.stages import StageShape, cut_stages
from gossamer.planner.step_time import Machine, StepTime, StepTraffic
from gossamer.planner.workload import RankGrid, RankLayout, StepSpec

DEFAULT_SCHEDULES: Final[tuple[ScheduleName, ...]] = ("1f1b", "interleaved", "zero-bubble")
_CHUNKS: Final = {"interleaved": (2,), "zero-bubble": (1, 2)}


@dataclass(frozen=True)
class PlannedLayout:
    """One way to train.

    Attributes:
        state: how weights are held.
        layout: grid, schedule and microbatches.
        memory: of the fullest rank, without the runtime's own.
        time: of a step, in closed form.
        traffic: of the busiest rank.
        limit: bytes that a plan may fill.
        simulated: seconds of a step with the pipeline played event by event, if it was.
    """

    state: str
    layout: RankLayout
    memory: RankMemory
    time: StepTime
    traffic: StepTraffic
    limit: float
    simulated: float | None = None

    @property
    def fits(self) -> bool:
        """Whether the fullest rank has room."""
        return self.memory.total <= self.limit

    @property
    def seconds(self) -> float:
        """Of a step: simulated where it was, else in closed form."""
        return self.time.total if self.simulated is None else self.simulated

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        layout = asdict(self.layout)
        return {
            "state": self.state,
            **layout.pop("grid"),
            **layout,
            "fits": self.fits,
            "seconds": self.seconds,
            "time": self.time.to_dict(),
            "simulated_seconds": self.simulated,
            "memory": self.memory.to_dict(),
            "traffic": self.traffic.to_dict(),
        }


def divisors(number: int) -> list[int]:
    """All of them, rising."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def layouts(
    ranks: int,
    work: StepSpec,
    schedules: Sequence[ScheduleName] = DEFAULT_SCHEDULES,
    max_shard: int | None = None,
) -> Iterator[RankLayout]:
    """Every grid, schedule and microbatch that divides ranks and batch."""
    for pipeline in divisors(ranks):
        for shard in divisors(ranks // pipeline):
            if max_shard is not None and shard > max_shard:
                continue
            grid = RankGrid(ranks // pipeline // shard, pipeline, shard)
            if work.batch % grid.batch_ways == 0:
                yield from _of_grid(grid, work, schedules)


def _of_grid(
    grid: RankGrid, work: StepSpec, schedules: Sequence[ScheduleName]
) -> Iterator[RankLayout]:
    local = work.batch // grid.batch_ways
    sizes = [work.microbatch] if work.microbatch else [2**k for k in range(local.bit_length())]
    # Without a pipeline there is nothing to order.
    names = schedules if grid.pipeline > 1 else schedules[:1]
    for size in sizes:
        if local % size:
            continue
        for name in names:
            for chunks in _CHUNKS.get(name, (1,)) if grid.pipeline > 1 else (1,):
                count = local // size
                # Rounds shorter than the pipeline leave chunks waiting for each other.
                waits = chunks > 1 and count < grid.pipeline
                if not waits and schedule_fault(name, grid.pipeline, count, chunks) is None:
                    yield RankLayout(grid, name, chunks, size, count)


@dataclass
class Evaluator(Machine):
    """Evaluates layouts of one model, cluster and state; stages are cut once."""

    _cut: dict[int, list[StageShape] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = self.state.on(self.cluster)

    def stages(self, layout: RankLayout) -> list[StageShape] | None:
        """The stages of a layout; None if the model has too few units."""
        if layout.stages not in self._cut:
            self._cut[layout.stages] = cut_stages(
                self.shape, layout.stages, self.unit_cost, self.work.cut
            )
        return self._cut[layout.stages]

    def evaluate(self, layout: RankLayout) -> PlannedLayout | None:
        """Memory, time and traffic in closed form; None where that cannot be."""
        stages = self.stages(layout)
        if stages is None or (layout.grid.shard > 1 and not self.state.can_shard):
            return None
        time, traffic = self.step(stages, layout)
        memory = rank_memory(self, stages, layout)
        return PlannedLayout(
            self.state.name, layout, memory, time, traffic, self.cluster.memory.bytes_for_training
        )

    def play(self, layout: RankLayout) -> Played:
        """The pipeline of a layout, event by event."""
        cores = self.cluster.shared_cores
        return simulate(
            layout.pipeline,
            self.costs(self.stages(layout) or [], layout),
            # Replicas behave alike unless cores tell them apart.
            replicas=1 if cores is None else layout.grid.batch_ways,
            cores=cores,
        )

    def simulated(self, found: PlannedLayout) -> PlannedLayout:
        """The candidate with its pipeline played instead of calculated."""
        time = found.time
        rest = time.shard + time.all_reduce + time.optimizer + time.compression
        return replace(found, simulated=self.play(found.layout).seconds + rest)
