# SPDX-License-Identifier: Apache-2.0
"""Seconds of a training step in closed form, and its traffic.

Compute is m microbatches on the slowest stage; the bubble is what the others add before the first
and after the last of them: (P - 1) (t_f + t_b) for equal stages, divided by the chunks of a rank,
and (P - 1) (t_f + t_i - t_w) where gradients of weights fill it. Messages between stages wait for
nobody and hide behind nothing, as in AxoNN's model; `pipeline_simulation.py` overlaps them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gossamer.planner.cluster import GB, ClusterSpec, CompactSpeed, LinkSpec
from gossamer.planner.collectives import Collective, reduce_bytes, reduce_time
from gossamer.planner.model_shape import ModelShape, Unit
from gossamer.planner.pipeline_simulation import Costs
from gossamer.planner.states import State
from gossamer.planner.table_step import TableStep, table_step
from gossamer.planner.workload import RankGrid, RankLayout, StageShape, StepSpec, Summed, weights_of

# DDP sends gradients in buckets of this size; the last one has no backward pass to hide behind.
BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True)
class StepTime(Summed):
    """Seconds of a step, by what they are spent on.

    Attributes:
        compute: of the slowest stage.
        bubble: waiting for the pipeline to fill and to empty.
        p2p: activations and their gradients between stages.
        shard: gathering sharded weights and scattering their gradients.
        all_reduce: of gradients between replicas, as far as it is not hidden, and of weights that
            two stages share.
        optimizer: the update.
        compression: between dense and compressed weights and gradients.
        tables: touched rows between replicas, with the work on both sides.
        tokens: to their experts on other ranks and back, and gradients the same ways.
    """

    compute: float
    bubble: float = 0.0
    p2p: float = 0.0
    shard: float = 0.0
    all_reduce: float = 0.0
    optimizer: float = 0.0
    compression: float = 0.0
    tables: float = 0.0
    tokens: float = 0.0


@dataclass(frozen=True)
class StepTraffic(Summed):
    """Bytes that the busiest rank sends in a step."""

    p2p: float
    shard: float
    all_reduce: float
    tables: float = 0.0
    tokens: float = 0.0


@dataclass
class Machine:
    """A cluster as one state of training of a model sees it."""

    shape: ModelShape
    cluster: ClusterSpec
    state: State
    work: StepSpec

    @property
    def speedup(self) -> float:
        """Of products with pruned weights; 1 where they are dense."""
        table = self.cluster.compute.compact if self.state.uses_kernels else ()
        return max(1.0, interpolate(table, self.work.density)) if table else 1.0

    @property
    def density(self) -> float:
        """Kept fraction of prunable weights; 1 where masks make nothing smaller."""
        return self.work.density if self.state.is_sparse else 1.0

    @property
    def on_kernels(self) -> bool:
        """Whether sparse kernels run the products."""
        return self.speedup > 1.0

    def forward_flops(self, part: Unit | StageShape) -> float:
        """Operations per token that a forward pass costs, as dense ones."""
        return part.flops_prunable / self.speedup + part.flops_rest

    def unit_cost(self, unit: Unit) -> float:
        """What stages are balanced by: operations of forward and backward."""
        return (4 if self.work.recompute and unit.is_block else 3) * self.forward_flops(unit)

    def costs(self, stages: Sequence[StageShape], layout: RankLayout) -> Costs:
        """Seconds of the stages and messages of one microbatch."""
        per_flop = layout.microbatch * self.shape.tokens / self.cluster.compute.flops
        forward = [self.forward_flops(stage) * per_flop for stage in stages]
        gained = 1 - 1 / self.speedup
        again = [
            (stage.flops_again - stage.flops_prunable * gained) * per_flop
            if self.work.recompute
            else 0.0
            for stage in stages
        ]
        link = pipeline_link(self.cluster, layout.grid)
        return Costs(
            forward=forward,
            backward_input=[f + more for f, more in zip(forward, again, strict=True)],
            backward_weight=forward,
            message=self._message(stages, layout) / link.bytes_per_second,
            latency=link.latency_seconds,
        )

    def _message(self, stages: Sequence[StageShape], layout: RankLayout) -> float:
        inner = max((stage.output for stage, _ in pairwise(stages)), default=0.0)
        return layout.microbatch * self.shape.tokens * inner * self.state.activation

    def step(
        self, stages: Sequence[StageShape], layout: RankLayout
    ) -> tuple[StepTime, StepTraffic]:
        """Seconds and bytes of a step."""
        if layout.grid.expert > 1 or self.shape.experts:
            return self._expert_step(stages[0], layout)
        costs, grid, m = self.costs(stages, layout), layout.grid, layout.microbatches
        # Forward, backward of the input and of the weights.
        passes = (costs.forward, costs.backward_input, costs.backward_weight)
        by_rank = [
            tuple(sum(part[rank :: grid.pipeline]) for part in passes)
            for rank in range(grid.pipeline)
        ]
        # Two come and two go at an interior stage; of two stages each is an end.
        passed = 0 if grid.pipeline == 1 else 2 if layout.stages == 2 else 4
        parts = [stages[rank :: grid.pipeline] for rank in range(grid.pipeline)]
        moved, compressed = max(map(self._moved, parts))
        all_sent = [self.sent(part) for part in parts]
        rows = self._rows(grid) if grid.data > 1 else None
        if rows is not None:
            # There are tables, so there is one stage: their gradients do not go with the others.
            entries = sum(table.rows * table.width for table in self.shape.tables)
            all_sent = [sent - entries * self.state.rest_number for sent in all_sent]
        # Gradients that one rank exchanges with another stage's rank.
        all_tied = [sum(stage.tied for stage in part) * self.state.rest_number for part in parts]
        sent, tied = max(all_sent), max(all_tied) / grid.shard
        # Every block is gathered twice and scattered once per microbatch, in rings.
        blocks = max(sum(max(1.0, stage.blocks) for stage in part) for part in parts)
        in_node, links = self.cluster.ranks_per_node % grid.shard == 0, self.cluster.links
        ring, ring_gb_s = (
            (links.inside, links.inside.gb_s) if in_node else (links.between, links.node_gb_s)
        )
        shard = 3 * m * sent * (grid.shard - 1) / grid.shard
        shard /= ring_gb_s * GB * links.ring_efficiency
        shard += 3 * m * blocks * (grid.shard - 1) * ring.latency_seconds
        # Ranks that share cores, all computing at once, are slower.
        crowd = max(1.0, grid.ranks / (self.cluster.shared_cores or grid.ranks))
        # Stages reduce their gradients in one go after the last microbatch.
        backward = sum(by_rank[0][1:]) if grid.pipeline == 1 else 0.0
        sent /= grid.shard
        all_reduce = exposed(
            reduce_seconds(self.cluster, grid, sent), sent, links.overlap * backward * crowd
        )
        if tied:
            # First and last stage send each other their gradients, after all else.
            link = pipeline_link(self.cluster, grid)
            all_reduce += tied / link.bytes_per_second + link.latency_seconds
        bandwidth = self.cluster.compute.memory_gb_s * GB
        message, last = self._message(stages, layout), len(stages) - 1
        # Of the rank that sends most: an end has fewer neighbours and may share a weight.
        traffic = (
            StepTraffic(
                p2p=m
                * sum((s > 0) + (s < last) for s in range(rank, len(stages), grid.pipeline))
                * message,
                shard=3 * m * (mine / grid.shard) * (grid.shard - 1),
                all_reduce=reduced_bytes(self.cluster, grid, mine / grid.shard)
                + shared / grid.shard,
                tables=0.0 if rows is None else rows.bytes,
            )
            for rank, (mine, shared) in enumerate(zip(all_sent, all_tied, strict=True))
        )
        time = StepTime(
            compute=m * max(map(sum, by_rank)) * crowd,
            bubble=_bubble(layout, by_rank),
            p2p=passed * m * layout.chunks * (costs.message + costs.latency),
            shard=shard,
            all_reduce=all_reduce,
            optimizer=moved / grid.shard / bandwidth * crowd,
            compression=0.0 if self.on_kernels else m * compressed / bandwidth * crowd,
            tables=0.0 if rows is None else self._rows_seconds(rows, grid) + rows.work * crowd,
        )
        return time, max(traffic, key=lambda one: one.total)

    def _expert_step(self, stage: StageShape, layout: RankLayout) -> tuple[StepTime, StepTraffic]:
        """Of a model with experts: one stage, data and expert ranks."""
        grid, m, links = layout.grid, layout.microbatches, self.cluster.links
        mine = stage.of_rank(grid.expert)
        costs = self.costs([stage], layout)
        crowd = max(1.0, grid.ranks / (self.cluster.shared_cores or grid.ranks))
        backward = (costs.backward_input[0] + costs.backward_weight[0]) * crowd
        compute = m * (costs.forward[0] * crowd + backward)
        # What is no expert has replicas on all ranks, an expert on data ranks only, one message
        # after the backward.
        experts = mine.of_experts * self.density * self.state.number
        rest, hidden = self.sent([mine]) - experts, links.overlap * backward
        all_reduce = exposed(reduce_seconds(self.cluster, grid.replicas, rest), rest, hidden)
        all_reduce += reduce_seconds(self.cluster, grid, experts)
        # There and back, forward and backward; the share of this rank stays.
        tokens = layout.microbatch * m * self.shape.tokens
        away = 1 - 1 / grid.expert
        sent = 4 * tokens * stage.routed * self.state.activation * away
        in_node = grid.expert <= self.cluster.ranks_per_node
        link = links.inside if in_node else links.between
        # All ranks of a node send at once.
        gb_s = link.gb_s if in_node else links.node_gb_s / self.cluster.ranks_per_node
        # Rows both ways, and counts of two small messages before them.
        messages = 6 * m * sum(unit.routed > 0 for unit in self.shape.units)
        travelling = sent / (gb_s * GB) + messages * (grid.expert > 1) * link.latency_seconds
        moved, compressed = self._moved([mine])
        bandwidth = self.cluster.compute.memory_gb_s * GB
        time = StepTime(
            compute=compute,
            all_reduce=all_reduce,
            optimizer=moved / bandwidth * crowd,
            compression=0.0 if self.on_kernels else m * compressed / bandwidth * crowd,
            tokens=travelling,
        )
        reduced = reduced_bytes(self.cluster, grid.replicas, rest)
        reduced += reduced_bytes(self.cluster, grid, experts)
        return time, StepTraffic(p2p=0.0, shard=0.0, all_reduce=reduced, tokens=sent)

    def _rows(self, grid: RankGrid) -> TableStep | None:
        """Touched rows of a step; None without tables."""
        tables, work = self.shape.tables, self.work
        if not tables:
            return None
        return table_step(
            tables, work.batch / grid.batch_ways, grid.data, work.table_wire, work.id_skew
        )

    def _rows_seconds(self, rows: TableStep, grid: RankGrid) -> float:
        """On the network: all others at once, after a message that says how much comes."""
        link, gb_s = data_link(self.cluster, grid)
        return rows.bytes / (gb_s * GB) + rows.messages * link.latency_seconds

    def _moved(self, stages: Sequence[StageShape]) -> tuple[float, float]:
        """Bytes moved by the optimizer, and by compression of one microbatch."""
        prunable, rest = weights_of(stages)
        optimizer = prunable * self.state.optimizer.per_parameter(self.density)
        optimizer += rest * self.state.rest_optimizer.per_parameter(1.0)
        return optimizer, prunable * self.state.compress.per_parameter(self.density)

    def sent(self, stages: Sequence[StageShape]) -> float:
        """Bytes of the gradients of one rank."""
        prunable, rest = weights_of(stages)
        return prunable * self.density * self.state.number + rest * self.state.rest_number


def interpolate(table: Sequence[CompactSpeed], density: float) -> float:
    """The speed-up at a density: linear between measured ones, constant beyond."""
    densities, speedups = zip(*sorted((row.density, row.speedup) for row in table), strict=True)
    return float(np.interp(density, densities, speedups))


def pipeline_link(cluster: ClusterSpec, grid: RankGrid) -> LinkSpec:
    """Between neighbouring stages; ranks count through shards, then stages, then replicas."""
    per_node, together = cluster.ranks_per_node, grid.pipeline * grid.shard
    in_node = together <= per_node and per_node % together == 0
    return cluster.links.inside if in_node else cluster.links.between


def reduce_seconds(cluster: ClusterSpec, grid: RankGrid, payload: float) -> float:
    """An all-reduce of `payload` bytes over the replicas, nothing hidden."""
    return reduce_time(*_reduction(cluster, grid, payload))


def reduced_bytes(cluster: ClusterSpec, grid: RankGrid, payload: float) -> float:
    """What the busiest rank sends in it."""
    return reduce_bytes(*_reduction(cluster, grid, payload))


def _reduction(
    cluster: ClusterSpec, grid: RankGrid, payload: float
) -> tuple[Collective, int, float, float, float]:
    link, gb_s = data_link(cluster, grid)
    speed = gb_s * GB * cluster.links.ring_efficiency
    return cluster.links.collective, grid.data, payload, speed, link.latency_seconds


def data_link(cluster: ClusterSpec, grid: RankGrid) -> tuple[LinkSpec, float]:
    """Between replicas: the link, and the GB/s that one ring has of it."""
    stride, per_node, links = grid.pipeline * grid.shard, cluster.ranks_per_node, cluster.links
    if stride * grid.data <= per_node:
        return links.inside, links.inside.gb_s
    # As many rings leave a node as it has ranks of different stages and shards.
    return links.between, links.node_gb_s / min(per_node, stride)


def exposed(seconds: float, payload: float, hidden_behind: float) -> float:
    """What is left of a reduction that starts while the last backward pass still runs."""
    if not payload:
        return 0.0
    last_bucket = seconds * min(1.0, BUCKET_BYTES / payload)
    return max(seconds - hidden_behind, last_bucket) if hidden_behind else seconds


def _bubble(layout: RankLayout, by_rank: Sequence[tuple[float, ...]]) -> float:
    gaps = [sum(parts) for parts in by_rank]
    if layout.schedule == "zero-bubble":
        gaps = [max(0.0, f + i - w) for f, i, w in by_rank]
    return (sum(gaps) - max(gaps)) / layout.chunks
