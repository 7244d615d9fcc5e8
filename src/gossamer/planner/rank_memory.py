# SPDX-License-Identifier: Apache-2.0
"""Bytes on the fullest rank of a layout."""

from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.planner.model_shape import ModelShape
from gossamer.planner.stages import Stage
from gossamer.planner.states import State
from gossamer.planner.workload import Layout, Workload
from gossamer.train.memory_formulas import Kind, StateCost

_WEIGHTS: tuple[Kind, ...] = ("weights", "positions", "dense copies")
_STATE: tuple[Kind, ...] = ("masters", "moments", "other")


@dataclass(frozen=True)
class RankMemory:
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

    @property
    def total(self) -> float:
        """Of everything."""
        return (
            self.weights
            + self.gradients
            + self.state
            + self.activations
            + self.scratch
            + self.buffers
        )


def rank_memory(
    shape: ModelShape,
    stages: Sequence[Stage],
    state: State,
    work: Workload,
    layout: Layout,
    *,
    on_kernels: bool,
) -> RankMemory:
    """The fullest rank.

    Args:
        shape: of the model.
        stages: of the whole pipeline; stage s lies on rank s mod P.
        state: how weights are held.
        work: what is trained.
        layout: where.
        on_kernels: sparse kernels run the products, so that no dense weight is ever built.
    """
    P = layout.grid.pipeline
    ranks = [
        _one_rank(shape, stages[rank::P], state, work, layout, held(layout, rank), on_kernels)
        for rank in range(P)
    ]
    return max(ranks, key=lambda memory: memory.total)


def held(layout: Layout, rank: int) -> float:
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


def _one_rank(
    shape: ModelShape,
    stages: Sequence[Stage],
    state: State,
    work: Workload,
    layout: Layout,
    in_flight: float,
    on_kernels: bool,
) -> RankMemory:
    shard, density = layout.grid.shard, work.density if state.is_sparse else 1.0
    prunable = sum(stage.prunable for stage in stages)
    rest = sum(stage.rest for stage in stages)

    def bytes_of(kinds: tuple[Kind, ...]) -> float:
        return _bytes(state.pruned, kinds, density) * prunable + _bytes(
            state.rest, kinds, 1.0
        ) * rest

    weights, gradients = bytes_of(_WEIGHTS), bytes_of(("gradients",))
    largest = max(stage.largest for stage in stages)
    scratch = 0.0
    if state.is_sparse and not on_kernels:
        # A dense gradient always, and a dense weight where none is resident.
        copies = 1 if state.pruned.per_weight.get("weights") else 2
        scratch += copies * largest * state.number
    if shard > 1:
        # One unit at a time is gathered from its shards.
        scratch += 2 * largest * density * state.number
    sent = prunable * density * state.number + rest * state.rest_number
    several = layout.grid.data > 1 and work.buckets
    return RankMemory(
        weights=weights / shard,
        gradients=gradients / shard,
        state=bytes_of(_STATE) / shard,
        activations=_activations(shape, stages, state, work, layout, in_flight),
        scratch=scratch,
        buffers=sent / shard if several else 0.0,
    )


def _bytes(cost: StateCost, kinds: tuple[Kind, ...], density: float) -> float:
    by_kind = cost.by_kind(density)
    return sum(by_kind[kind] for kind in kinds)


def _activations(
    shape: ModelShape,
    stages: Sequence[Stage],
    state: State,
    work: Workload,
    layout: Layout,
    in_flight: float,
) -> float:
    tokens = layout.microbatch * shape.tokens * state.number
    interval = work.interval(shape.blocks)
    if not interval:
        return in_flight * sum(stage.saved for stage in stages) * tokens
    inner = max(unit.output for unit in shape.units if unit.is_block)
    kept = in_flight * sum(stage.blocks for stage in stages) / interval * inner
    again = max(
        max(min(interval, stage.blocks) * stage.saved_block, stage.saved_end) for stage in stages
    )
    return (kept + again) * tokens
