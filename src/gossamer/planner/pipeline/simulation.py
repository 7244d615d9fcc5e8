# SPDX-License-Identifier: Apache-2.0
"""One step of a pipeline, action by action, with links, jitter and slow parts.

Where a schedule is a fixed order, times follow from the order alone: every action starts when its
rank is free and its input is there. Times are arrays over replicas of the pipeline, so thousands
of ranks cost as much as one pipeline. `events.py` plays what has no order, or too few cores.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gossamer.errors import InputError
from gossamer.planner.pipeline.schedules import (
    Action,
    ActionKind,
    PipelineSpec,
    input_of,
    needs_input,
    next_input,
    rank_order,
)

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Costs:
    """Seconds of the parts of a step.

    Attributes:
        forward: of one microbatch in each stage.
        backward_input: gradient of the input, recomputation included.
        backward_weight: gradient of the weights.
        message: a link is busy so long with the activations, or their gradient, of one microbatch.
        latency: then it takes so long to arrive.
        jitter: relative standard deviation of every action and message; log-normal, mean 1.
        slow_ranks: factor on the work of a rank.
        slow_links: factor on messages between ranks, by (sender, receiver).
    """

    forward: Sequence[float]
    backward_input: Sequence[float]
    backward_weight: Sequence[float]
    message: float = 0.0
    latency: float = 0.0
    jitter: float = 0.0
    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    slow_links: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def check(self, pipeline: PipelineSpec) -> None:
        """Every stage has its costs, and none is negative."""
        for name in ("forward", "backward_input", "backward_weight"):
            values = getattr(self, name)
            if len(values) != pipeline.stages:
                raise InputError(
                    f"costs.{name}: needs {pipeline.stages} values, one per stage; got"
                    f" {len(values)}."
                )
            if min(values) < 0:
                raise InputError(f"costs.{name}: times cannot be negative, got {min(values)}.")

    def of(self, action: Action) -> float:
        """Seconds of an action, without noise."""
        stage = action.stage
        input_seconds, weight_seconds = self.backward_input[stage], self.backward_weight[stage]
        return {
            ActionKind.FORWARD: self.forward[stage],
            ActionKind.BACKWARD: input_seconds + weight_seconds,
            ActionKind.INPUT: input_seconds,
            ActionKind.WEIGHT: weight_seconds,
        }[action.kind]


@dataclass(frozen=True)
class ActionSpan:
    """An action of one rank and when it ran."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Played:
    """What came of a step.

    Attributes:
        seconds: until the last rank of the slowest replica is ready.
        finished: by rank, of the slowest replica.
        busy: seconds of work by rank, mean over replicas.
        most_held: microbatches of a stage whose activations were held at once, by rank.
        spans: of the first replica, in no order.
    """

    seconds: float
    finished: tuple[float, ...]
    busy: tuple[float, ...]
    most_held: tuple[int, ...]
    spans: tuple[ActionSpan, ...]

    @property
    def bubble(self) -> float:
        """Part of the step in which ranks wait, mean over ranks."""
        if not self.seconds:
            return 0.0
        return 1 - sum(self.busy) / len(self.busy) / self.seconds


class Noise:
    """Log-normal factors with mean 1; none where jitter is 0, so that nothing is drawn."""

    def __init__(self, jitter: float, seed: int) -> None:
        self._sigma = float(np.sqrt(np.log1p(jitter**2)))
        self._generator = np.random.default_rng(seed)
        self._drawn: list[float] = []

    def factors(self, count: int) -> Times | float:
        """One factor per replica."""
        if not self._sigma:
            return 1.0
        return self._generator.lognormal(-(self._sigma**2) / 2, self._sigma, count)

    def factor(self) -> float:
        """One factor; drawn in blocks, since single draws would be most of a simulation."""
        if not self._sigma:
            return 1.0
        if not self._drawn:
            self._drawn = np.asarray(self.factors(4096)).tolist()
        return self._drawn.pop()


def simulate(
    pipeline: PipelineSpec,
    costs: Costs,
    *,
    replicas: int = 1,
    seed: int = 0,
    cores: int | None = None,
) -> Played:
    """Play one step.

    Args:
        pipeline: its ranks, microbatches and schedule.
        costs: seconds of its parts.
        replicas: pipelines side by side with noise of their own.
        seed: of the noise.
        cores: all ranks compute on so many cores; None: each has its own.
    """
    costs.check(pipeline)
    if pipeline.schedule == "message-driven" or cores is not None:
        from gossamer.planner.pipeline.events import play_events

        return play_events(pipeline, costs, replicas=replicas, seed=seed, cores=cores)
    return _propagate(pipeline, costs, replicas, seed)


def _propagate(pipeline: PipelineSpec, costs: Costs, replicas: int, seed: int) -> Played:
    """Times of a fixed order; ranks advance as far as they can, in turn."""
    noise = Noise(costs.jitter, seed)
    orders = [rank_order(pipeline, rank) for rank in range(pipeline.ranks)]
    free = [np.zeros(replicas) for _ in orders]
    busy = [np.zeros(replicas) for _ in orders]
    link_free: dict[tuple[int, int], Times] = {}
    ready: dict[Action, Times] = {}
    spans: list[ActionSpan] = []

    def run(rank: int, action: Action) -> None:
        start = free[rank]
        waited = ready.pop(input_of(action), None)
        if waited is not None:
            start = np.maximum(start, waited)
        work = costs.of(action) * costs.slow_ranks.get(rank, 1.0) * noise.factors(replicas)
        free[rank] = end = start + work
        busy[rank] = busy[rank] + work
        spans.append(ActionSpan(rank, action, float(start[0]), float(end[0])))
        target = next_input(pipeline, action)
        if target is None:
            return
        ends = rank, target.stage % pipeline.ranks
        if ends[0] == ends[1]:
            ready[target] = end
            return
        leave = np.maximum(end, link_free.get(ends, end))
        taken = costs.message * costs.slow_links.get(ends, 1.0) * noise.factors(replicas)
        link_free[ends] = leave + taken
        ready[target] = leave + taken + costs.latency

    left = [deque(order) for order in orders]
    while any(left):
        before = len(spans)
        for rank, order in enumerate(left):
            while order and (not needs_input(pipeline, order[0]) or input_of(order[0]) in ready):
                run(rank, order.popleft())
        if len(spans) == before:
            waiting = [rank for rank, order in enumerate(left) if order]
            raise InputError(f"{pipeline.schedule}: ranks {waiting} wait for each other.")
    finished = np.stack(free)
    return Played(
        seconds=float(finished.max()),
        finished=tuple(finished[:, int(finished.max(axis=0).argmax())].tolist()),
        busy=tuple(float(b.mean()) for b in busy),
        most_held=tuple(map(held_at_once, orders)),
        spans=tuple(spans),
    )


def held_at_once(order: Sequence[Action]) -> int:
    """Most forwards whose backward, of the weights where that is separate, is still to come."""
    held = most = 0
    for action in order:
        if action.kind is ActionKind.FORWARD:
            held += 1
            most = max(most, held)
        elif action.kind is not ActionKind.INPUT:
            held -= 1
    return most
