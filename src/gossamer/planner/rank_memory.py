# SPDX-License-Identifier: Apache-2.0
"""Bytes on the fullest rank of a layout."""

from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.planner.stages import StageShape, weights_of
from gossamer.planner.step_time import Machine
from gossamer.planner.workload import RankLayout, Summed
from gossamer.training.memory import Kind

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
    buckets = layout.grid.data > 1 and work.buckets
    found = []
    for rank in range(P):
        part, in_flight = stages[rank::P], held(layout, rank)
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
