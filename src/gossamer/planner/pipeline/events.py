# SPDX-License-Identifier: Apache-2.0
"""A step of a pipeline by events: for work without a fixed order, and for ranks that share cores.

Message-driven (AxoNN): the first rank lets P microbatches in; every rank runs whichever message,
forward or backward, arrived first; each backward that comes home lets the next one in. The last
rank runs forward and backward of a microbatch at once.
"""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from gossamer.planner.pipeline.schedules import (
    Action,
    ActionKind,
    PipelineSpec,
    input_of,
    needs_input,
    next_input,
    rank_order,
)
from gossamer.planner.pipeline.simulation import ActionSpan, Costs, Noise, Played, held_at_once


def play_events(
    pipeline: PipelineSpec, costs: Costs, *, replicas: int, seed: int, cores: int | None
) -> Played:
    """Play one step; replicas are independent unless they share cores."""
    if cores is not None:
        return _Game(pipeline, costs, replicas, seed, cores).play()
    games = [_Game(pipeline, costs, 1, seed + index, None).play() for index in range(replicas)]
    slowest = max(games, key=lambda game: game.seconds)
    return Played(
        seconds=slowest.seconds,
        finished=slowest.finished,
        busy=tuple(np.mean([game.busy for game in games], axis=0).tolist()),
        most_held=tuple(np.max([game.most_held for game in games], axis=0).tolist()),
        spans=games[0].spans,
    )


@dataclass
class _Rank:
    """A process: what it could do, and what it is doing."""

    pipe: int
    number: int
    order: deque[Action] = field(default_factory=deque)
    arrived: dict[Action, None] = field(default_factory=dict)
    running: bool = False
    done: list[Action] = field(default_factory=list)
    busy: float = 0.0
    free_at: float = 0.0


class _Game:
    def __init__(
        self, pipeline: PipelineSpec, costs: Costs, replicas: int, seed: int, cores: int | None
    ) -> None:
        self.pipeline, self.costs = pipeline, costs
        self.noise = Noise(costs.jitter, seed)
        self.by_message = pipeline.schedule == "message-driven"
        self.cores = cores
        self.queue: deque[tuple[_Rank, Action]] = deque()
        self.events: list[tuple[float, int, _Rank, Action, bool]] = []
        self.count = itertools.count()
        self.link_free: dict[tuple[int, int, int], float] = {}
        self.spans: list[ActionSpan] = []
        self.ranks = [
            [_Rank(pipe, number) for number in range(pipeline.ranks)] for pipe in range(replicas)
        ]
        self.entered = [0] * replicas

    def play(self) -> Played:
        for pipe, ranks in enumerate(self.ranks):
            if self.by_message:
                for _ in range(min(self.pipeline.ranks, self.pipeline.microbatches)):
                    self._enter(pipe, 0.0)
            else:
                for rank in ranks:
                    rank.order.extend(rank_order(self.pipeline, rank.number))
                    self._offer(rank, 0.0)
        while self.events:
            now, _, rank, action, is_message = heapq.heappop(self.events)
            if is_message:
                self._take(rank, action, now)
            else:
                self._finish(rank, action, now)
        finished = max(([rank.free_at for rank in ranks] for ranks in self.ranks), key=max)
        # Replicas of one rank together.
        alike = list(zip(*self.ranks, strict=True))
        return Played(
            seconds=max(finished),
            finished=tuple(finished),
            busy=tuple(float(np.mean([rank.busy for rank in ranks])) for ranks in alike),
            most_held=tuple(max(held_at_once(rank.done) for rank in ranks) for ranks in alike),
            spans=tuple(self.spans),
        )

    def _enter(self, pipe: int, now: float) -> None:
        """Let the next microbatch into the first stage."""
        number = self.entered[pipe]
        if number < self.pipeline.microbatches:
            self.entered[pipe] += 1
            self._take(self.ranks[pipe][0], Action(ActionKind.FORWARD, 0, number), now)

    def _take(self, rank: _Rank, action: Action, now: float) -> None:
        """The input of an action is there."""
        rank.arrived[action] = None
        self._offer(rank, now)

    def _offer(self, rank: _Rank, now: float) -> None:
        """Start the next action of a rank, if it has one and a core is free."""
        action = None if rank.running else self._next(rank)
        if action is None:
            return
        rank.running = True
        if self.cores == 0:
            self.queue.append((rank, action))
        else:
            self._start(rank, action, now)

    def _next(self, rank: _Rank) -> Action | None:
        if self.by_message:
            if not rank.arrived:
                return None
            # Of two that wait, the backward one: it frees memory and lets a microbatch in.
            action = min(rank.arrived, key=lambda one: one.kind is ActionKind.FORWARD)
            del rank.arrived[action]
            return action
        if not rank.order:
            return None
        action = rank.order[0]
        if needs_input(self.pipeline, action) and input_of(action) not in rank.arrived:
            return None
        return rank.order.popleft()

    def _start(self, rank: _Rank, action: Action, now: float) -> None:
        if self.cores is not None:
            self.cores -= 1
        work = self.costs.of(action)
        if self._is_last(action):
            work += self.costs.of(action._replace(kind=ActionKind.BACKWARD))
        work *= self.costs.slow_ranks.get(rank.number, 1.0) * self.noise.factor()
        rank.busy += work
        if rank.pipe == 0:
            self.spans.append(ActionSpan(rank.number, action, now, now + work))
        heapq.heappush(self.events, (now + work, next(self.count), rank, action, False))

    def _finish(self, rank: _Rank, action: Action, now: float) -> None:
        rank.running, rank.free_at = False, now
        rank.done.append(action)
        if self._is_last(action):
            action = action._replace(kind=ActionKind.BACKWARD)
            rank.done.append(action)
        self._give(rank, action, now)
        if self.cores is not None:
            self.cores += 1
            if self.queue:
                self._start(*self.queue.popleft(), now)
        self._offer(rank, now)

    def _give(self, rank: _Rank, action: Action, now: float) -> None:
        """Send what an action made to the stage that waits for it."""
        target = next_input(self.pipeline, action)
        if target is None:
            if self.by_message and action.kind is ActionKind.BACKWARD:
                self._enter(rank.pipe, now)
            return
        other = self.ranks[rank.pipe][target.stage % self.pipeline.ranks]
        if other is rank:
            self._take(rank, target, now)
            return
        ends = rank.number, other.number
        link = (rank.pipe, *ends)
        leave = max(now, self.link_free.get(link, 0.0))
        taken = self.costs.message * self.costs.slow_links.get(ends, 1.0) * self.noise.factor()
        self.link_free[link] = leave + taken
        arrival = leave + taken + self.costs.latency
        heapq.heappush(self.events, (arrival, next(self.count), other, target, True))

    def _is_last(self, action: Action) -> bool:
        """Whether a message runs forward and backward at once."""
        is_end = action.stage == self.pipeline.stages - 1
        return self.by_message and action.kind is ActionKind.FORWARD and is_end
