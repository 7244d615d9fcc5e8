# SPDX-License-Identifier: Apache-2.0
"""Every legal layout of a number of ranks: memory of the fullest rank, time and traffic."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from gossamer.planner.pipeline_orders import ScheduleName, schedule_fault
from gossamer.planner.pipeline_simulation import Played, simulate
from gossamer.planner.step_time import Machine, StepTime, StepTraffic
from gossamer.planner.workload import (
    RankGrid,
    RankLayout,
    StageShape,
    StepSpec,
    Summed,
    cut_stages,
    weights_of,
)
from gossamer.training.memory.formulas import Kind

# Of weights, gradients and state.
_KINDS: tuple[tuple[Kind, ...], ...] = (
    ("weights", "positions", "dense copies"),
    ("gradients",),
    ("masters", "moments", "other"),
)


@dataclass(frozen=True)
class RankMemory(Summed):
    """Bytes of one rank, by what they are for.

    Attributes:
        weights: with positions of kept entries, and dense copies where there are some.
        gradients: held until the optimizer has used them.
        state: masters and moments of the optimizer.
        activations: what backward passes wait for.
        scratch: one layer at a time: dense copies, recomputed activations are not in it.
        buffers: gradients on their way through the network.
    """

    weights: float
    gradients: float
    state: float
    activations: float
    scratch: float
    buffers: float


def rank_memory(machine: Machine, stages: Sequence[StageShape], layout: RankLayout) -> RankMemory:
    """The fullest rank.

    Args:
        machine: what is trained where, and how weights are held.
        stages: of the whole pipeline; stage s lies on rank s mod P.
        layout: of the ranks.
    """
    P, shard = layout.grid.pipeline, layout.grid.shard
    state, work = machine.state, machine.work
    pruned, rest = state.pruned.by_kind(machine.density), state.rest.by_kind(1.0)
    per_entry = [
        (sum(pruned[kind] for kind in kinds), sum(rest[kind] for kind in kinds)) for kinds in _KINDS
    ]
    copies = 0.0
    if state.is_sparse and not machine.on_kernels:
        # A dense gradient always, and a dense weight where none is resident.
        copies += 1 if state.pruned.per_weight.get("weights") else 2
    if shard > 1:
        # One unit at a time is gathered from its shards, with its gradient.
        copies += 2 * machine.density
    token_bytes = layout.microbatch * machine.shape.tokens * state.activation
    buckets = layout.grid.replicas.data > 1 and work.buckets
    found = []
    for rank in range(P):
        part = [stage.of_rank(layout.grid.expert) for stage in stages[rank::P]]
        in_flight = held(layout, rank)
        prunable, others = weights_of(part)
        weights, gradients, moments = (
            (of_pruned * prunable + of_rest * others) / shard for of_pruned, of_rest in per_entry
        )
        found.append(
            RankMemory(
                weights=weights,
                gradients=gradients,
                state=moments,
                activations=_saved(machine, part, in_flight) * token_bytes,
                scratch=copies * max(stage.largest for stage in part) * state.number,
                buffers=machine.sent(part) / shard if buckets else 0.0,
            )
        )
    return max(found, key=lambda memory: memory.total)


def held(layout: RankLayout, rank: int) -> float:
    """Microbatches whose activations a rank holds at once, in units of its whole stage."""
    P, m, v = layout.grid.pipeline, layout.microbatches, layout.chunks
    per_round = m // max(1, m // P)
    if layout.schedule == "gpipe":
        return m
    if layout.schedule == "1f1b":
        return min(m, P - rank)
    if layout.schedule == "message-driven":
        return 1 if rank == P - 1 else min(m, P)
    if layout.schedule == "interleaved":
        return min(m * v, (v - 1) * per_round + 2 * (P - 1 - rank) + 1) / v
    return min(m * v, (v - 1) * per_round + P) / v


def _saved(machine: Machine, stages: Sequence[StageShape], in_flight: float) -> float:
    """Numbers per token of a microbatch that the stages of a rank keep for backward passes."""
    interval = machine.work.interval(machine.shape.blocks)
    if not interval:
        return in_flight * sum(stage.saved for stage in stages)
    inner = max(unit.output for unit in machine.shape.units if unit.is_block)
    kept = in_flight * sum(stage.blocks for stage in stages) / interval * inner
    again = max(
        max(min(interval, stage.blocks) * stage.saved_block, stage.saved_end) for stage in stages
    )
    return kept + again


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
    experts: int = 0,
) -> Iterator[RankLayout]:
    """Every grid, schedule and microbatch that divides ranks and batch.

    A model with experts has data and expert ranks only: `mesh` refuses the rest, too.
    """
    if experts:
        for expert in (count for count in divisors(ranks) if experts % count == 0):
            grid = RankGrid(ranks // expert, 1, 1, expert)
            if work.batch % grid.batch_ways == 0:
                yield from _of_grid(grid, work, schedules)
        return
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
        if self.shape.tables and layout.grid.shard * layout.grid.pipeline > 1:
            # Touched rows cannot be cut so; `mesh` refuses it, too.
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
        rest = time.shard + time.all_reduce + time.optimizer + time.compression + time.tables
        rest += time.tokens
        return replace(found, simulated=self.play(found.layout).seconds + rest)
