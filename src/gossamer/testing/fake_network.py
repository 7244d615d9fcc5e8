# SPDX-License-Identifier: Apache-2.0
"""A pipeline in virtual time, on a network made of a seed.

Work takes as long as `Conditions` says, messages are late, links overtake each other and sometimes
stall; on one link order is kept, as TCP does. The decisions are those of `message_driven.py`, the
very ones that run on a real network. Cost: some microseconds per message.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gossamer.errors import DistributedError
from gossamer.training.distributed.pipeline import Direction, Work, WorkSpan


class StageWork:
    """What the stages compute; messages are whatever it likes. This one computes nothing."""

    def forward(self, stage: int, microbatch: int, message: Any) -> Any:
        """The activation for the next stage; `message` is None on the first."""

    def backward(self, stage: int, microbatch: int, message: Any) -> Any:
        """The gradient for the stage before; `message` is None on the last."""


class Decisions(Protocol):
    """What a stage runs next; `MessageDriven` is one."""

    finished: bool

    def arrive(self, work: Work) -> None:
        """Note a message."""

    def start(self) -> Work | None:
        """What to run now, or None."""


# (stage, direction, microbatch, random numbers) -> seconds
Duration = Callable[[int, Direction, int, random.Random], float]


@dataclass(frozen=True)
class Conditions:
    """How long things take.

    Attributes:
        work: of a stage on a microbatch.
        delay: of a message; the stage is the sender, the direction that of the work it asks for.
    """

    work: Duration
    delay: Duration


def rough_weather(mean: float = 1.0, stall: float = 50.0, stall_rate: float = 0.02) -> Conditions:
    """Random times of work and messages, with a stall of a stage or a link now and then."""

    def draw(stage: int, direction: Direction, microbatch: int, numbers: random.Random) -> float:
        return (stall if numbers.random() < stall_rate else 0.0) + numbers.expovariate(1 / mean)

    return Conditions(draw, draw)


class FakeNetwork:
    """Stages, links between neighbours, and a clock.

    Args:
        stages: how each stage decides.
        conditions: how long things take.
        seed: of all random numbers.
        work: what is computed.
    """

    def __init__(
        self,
        stages: list[Decisions],
        conditions: Conditions,
        seed: int = 0,
        work: StageWork | None = None,
    ) -> None:
        self._stages, self._conditions = stages, conditions
        self._numbers = random.Random(seed)  # noqa: S311  (weather, not secrets)
        self._work = work or StageWork()
        self._busy = [False] * len(stages)
        # Numbered: equal times keep their order, and messages are never compared.
        self._events: list[tuple[float, int, int, Work, Any, bool]] = []
        self._count = itertools.count()
        self._link_free: dict[tuple[int, Direction], float] = {}
        self._received: dict[tuple[int, Work], Any] = {}
        self.spans: list[WorkSpan] = []

    def run(self) -> float:
        """Let all stages finish; the time it took. A deadlock is an error."""
        now = 0.0
        for stage in range(len(self._stages)):
            self._start_work(stage, now)
        while self._events:
            now, _, stage, work, message, is_message = heapq.heappop(self._events)
            if is_message:
                self._received[stage, work] = message
                self._stages[stage].arrive(work)
            else:
                self._busy[stage] = False
                self._send(stage, work, message, now)
            self._start_work(stage, now)
        waiting = [index for index, stage in enumerate(self._stages) if not stage.finished]
        if waiting:
            raise DistributedError(f"pipeline: stages {waiting} wait for ever; no message is due.")
        return now

    def _start_work(self, stage: int, now: float) -> None:
        work = None if self._busy[stage] else self._stages[stage].start()
        if work is None:
            return
        self._busy[stage] = True
        compute = self._work.forward if work.direction == "forward" else self._work.backward
        message = compute(stage, work.microbatch, self._received.pop((stage, work), None))
        stop = now + self._conditions.work(stage, *work, self._numbers)
        self.spans.append(WorkSpan(stage, work.direction, work.microbatch, now, stop))
        heapq.heappush(self._events, (stop, next(self._count), stage, work, message, False))

    def _send(self, stage: int, work: Work, message: Any, now: float) -> None:
        receiver = stage + 1 if work.direction == "forward" else stage - 1
        if not 0 <= receiver < len(self._stages):
            return
        link = (stage, work.direction)
        due = now + self._conditions.delay(stage, *work, self._numbers)
        self._link_free[link] = arrival = max(due, self._link_free.get(link, 0.0))
        heapq.heappush(self._events, (arrival, next(self._count), receiver, work, message, True))
