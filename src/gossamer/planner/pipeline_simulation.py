# SPDX-License-Identifier: Apache-2.0
"""One step of a pipeline by events, with links, jitter, slow parts and ranks that share cores.

An action starts when its rank is free and its input is there. Where a schedule is a fixed order and
ranks have cores of their own, all replicas do the same, only at other times: times are arrays over
replicas, so thousands of ranks cost as much as one pipeline.

Message-driven (AxoNN): the first rank lets P microbatches in; every rank runs whichever message,
forward or backward, arrived first; each backward that comes home lets the next one in. The last
rank runs forward and backward of a microbatch at once.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gossamer.errors import InputError
from gossamer.planner.pipeline_orders import (
    Action,
    PipelineSpec,
    input_of,
    needs_input,
    next_input,
    rank_order,
)
from gossamer.training.distributed.pipeline import WorkSpan

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
            "forward": self.forward[stage],
            "backward": input_seconds + weight_seconds,
            "input": input_seconds,
            "weight": weight_seconds,
        }[action.kind]


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
    spans: tuple[WorkSpan, ...]

    @property
    def bubble(self) -> float:
        """Part of the step in which ranks wait, mean over ranks."""
        if not self.seconds:
            return 0.0
        return 1 - sum(self.busy) / len(self.busy) / self.seconds


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
    if cores is not None:
        games = [_Game(pipeline, costs, seed, pipes=replicas, cores=cores)]
    elif pipeline.schedule == "message-driven":
        games = [_Game(pipeline, costs, seed + index) for index in range(replicas)]
    else:
        games = [_Game(pipeline, costs, seed, replicas=replicas)]
    played = [ranks for game in games for ranks in game.play()]
    # Replicas x ranks.
    finished = np.hstack([[rank.free for rank in ranks] for ranks in played]).T
    busy = np.hstack([[rank.busy for rank in ranks] for ranks in played])
    held = [[held_at_once(rank.done) for rank in ranks] for ranks in played]
    return Played(
        seconds=float(finished.max()),
        finished=tuple(finished[finished.max(axis=1).argmax()].tolist()),
        busy=tuple(busy.mean(axis=1).tolist()),
        most_held=tuple(map(max, zip(*held, strict=True))),
        spans=tuple(games[0].spans),
    )


@dataclass
class _Rank:
    """A process: what it could do, what it has done, and when it is free."""

    pipe: int
    number: int
    order: deque[Action]
    free: Times
    busy: Times
    arrived: dict[Action, Times] = field(default_factory=dict)
    running: bool = False
    done: list[Action] = field(default_factory=list)


class _Game:
    """Pipes that may share cores, each for a number of replicas that do the same in it."""

    def __init__(
        self,
        pipeline: PipelineSpec,
        costs: Costs,
        seed: int,
        *,
        pipes: int = 1,
        replicas: int = 1,
        cores: int | None = None,
    ) -> None:
        self.pipeline, self.costs = pipeline, costs
        self.replicas, self.cores = replicas, cores
        self.random = np.random.default_rng(seed)
        self.by_message = pipeline.schedule == "message-driven"
        self.queue: deque[tuple[_Rank, Action]] = deque()
        self.events: list[tuple[float, int, _Rank, Action, Times | None]] = []
        self.count = itertools.count()
        self.link_free: dict[tuple[int, int, int], Times] = {}
        self.spans: list[WorkSpan] = []
        orders = [
            [] if self.by_message else rank_order(pipeline, rank) for rank in range(pipeline.ranks)
        ]
        self.ranks = [
            [
                _Rank(pipe, number, deque(order), np.zeros(replicas), np.zeros(replicas))
                for number, order in enumerate(orders)
            ]
            for pipe in range(pipes)
        ]
        self.entered = [0] * pipes

    def play(self) -> list[list[_Rank]]:
        """The ranks of each pipe, when all is done."""
        for ranks in self.ranks:
            for rank in ranks:
                self._offer(rank)
            if self.by_message:
                for _ in range(self.pipeline.ranks):
                    self._enter(ranks[0], ranks[0].free)
        while self.events:
            _, _, rank, action, arrival = heapq.heappop(self.events)
            if arrival is None:
                self._finish(rank, action)
            else:
                self._take(rank, action, arrival)
        waiting = sorted({rank.number for ranks in self.ranks for rank in ranks if rank.order})
        if waiting:
            raise InputError(f"{self.pipeline.schedule}: ranks {waiting} wait for each other.")
        return self.ranks

    def _enter(self, first: _Rank, now: Times) -> None:
        """Let the next microbatch into the first stage."""
        number = self.entered[first.pipe]
        if number < self.pipeline.microbatches:
            self.entered[first.pipe] += 1
            self._take(first, Action("forward", 0, number), now)

    def _take(self, rank: _Rank, action: Action, now: Times) -> None:
        """The input of an action is there."""
        rank.arrived[action] = now
        self._offer(rank)

    def _offer(self, rank: _Rank) -> None:
        """Start the next action of a rank, if it has one and a core is free."""
        action = None if rank.running else self._next(rank)
        if action is None:
            return
        start = np.maximum(rank.free, rank.arrived.pop(input_of(action), rank.free))
        rank.running = True
        if self.cores == 0:
            self.queue.append((rank, action))
        else:
            self._start(rank, action, start)

    def _next(self, rank: _Rank) -> Action | None:
        if self.by_message:
            # Of two that wait, the backward one: it frees memory and lets a microbatch in.
            first = (one for one in rank.arrived if one.kind != "forward")
            return next(first, next(iter(rank.arrived), None))
        if not rank.order:
            return None
        action = rank.order[0]
        if needs_input(self.pipeline, action) and input_of(action) not in rank.arrived:
            return None
        return rank.order.popleft()

    def _start(self, rank: _Rank, action: Action, now: Times) -> None:
        if self.cores is not None:
            self.cores -= 1
        seconds = self.costs.of(action)
        if self._is_last(action):
            seconds += self.costs.of(action._replace(kind="backward"))
        work = self._noisy(seconds * self.costs.slow_ranks.get(rank.number, 1.0))
        rank.busy = rank.busy + work
        rank.free = now + work
        if rank.pipe == 0:
            kind, stage, number = action
            self.spans.append(WorkSpan(stage, kind, number, float(now[0]), float(rank.free[0])))
        self._push(rank.free, rank, action, None)

    def _finish(self, rank: _Rank, action: Action) -> None:
        rank.running = False
        rank.done.append(action)
        if self._is_last(action):
            action = action._replace(kind="backward")
            rank.done.append(action)
        self._give(rank, action)
        if self.cores is not None:
            self.cores += 1
            if self.queue:
                self._start(*self.queue.popleft(), rank.free)
        self._offer(rank)

    def _give(self, rank: _Rank, action: Action) -> None:
        """Send what an action made to the stage that waits for it."""
        now, target = rank.free, next_input(self.pipeline, action)
        if target is None:
            if self.by_message and action.kind == "backward":
                self._enter(rank, now)
            return
        other = self.ranks[rank.pipe][target.stage % self.pipeline.ranks]
        if other is rank:
            self._take(rank, target, now)
            return
        ends = rank.number, other.number
        link = (rank.pipe, *ends)
        leave = np.maximum(now, self.link_free.get(link, now))
        taken = self._noisy(self.costs.message * self.costs.slow_links.get(ends, 1.0))
        self.link_free[link] = leave + taken
        arrival = self.link_free[link] + self.costs.latency
        self._push(arrival, other, target, arrival)

    def _push(self, time: Times, rank: _Rank, action: Action, arrival: Times | None) -> None:
        """An action ends, or its input arrives; the clock of the first replica orders events."""
        event = float(time[0]), next(self.count), rank, action, arrival
        heapq.heappush(self.events, event)

    def _noisy(self, seconds: float) -> Times:
        """With log-normal factors of mean 1, one per replica; without jitter nothing is drawn."""
        sigma = float(np.sqrt(np.log1p(self.costs.jitter**2)))
        if not sigma:
            return np.full(self.replicas, seconds)
        return seconds * self.random.lognormal(-(sigma**2) / 2, sigma, self.replicas)

    def _is_last(self, action: Action) -> bool:
        """Whether a message runs forward and backward at once."""
        is_end = action.stage == self.pipeline.stages - 1
        return self.by_message and action.kind == "forward" and is_end


def held_at_once(order: Sequence[Action]) -> int:
    """Most forwards whose backward, of the weights where that is separate, is still to come."""
    changes = (1 if action.kind == "forward" else -1 for action in order if action.kind != "input")
    return max(itertools.accumulate(changes), default=0)
