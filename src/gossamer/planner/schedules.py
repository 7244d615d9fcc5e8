# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules as orders of work: which rank does what, one after the other.

A pipeline of P ranks with v chunks each has P v stages; stage s lies on rank s mod P. Interleaved
and zero-bubble orders are those of `torch.distributed.pipelining`. The message-driven schedule has
no order: whatever arrives first is run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, Literal, NamedTuple, get_args

from gossamer.errors import InputError

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "message-driven"]
SCHEDULES: Final[tuple[ScheduleName, ...]] = get_args(ScheduleName)


class ActionKind(str, Enum):
    """Work on one microbatch: forward, backward, or backward in two halves."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


class Action(NamedTuple):
    """Work on a microbatch in a stage."""

    kind: ActionKind
    stage: int
    microbatch: int


@dataclass(frozen=True)
class PipelineSpec:
    """One pipeline and its schedule.

    Attributes:
        schedule: its name.
        ranks: P.
        microbatches: m, of one step.
        chunks: v, stages of a rank; more than 1 for "interleaved" and "zero-bubble" only.
    """

    schedule: ScheduleName
    ranks: int
    microbatches: int
    chunks: int = 1

    def __post_init__(self) -> None:
        fault = schedule_fault(self.schedule, self.ranks, self.microbatches, self.chunks)
        if fault:
            raise InputError(f"pipeline: {fault}")

    @property
    def stages(self) -> int:
        """Of all ranks."""
        return self.ranks * self.chunks

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of inputs and of weights are separate work."""
        return self.schedule == "zero-bubble"


def schedule_fault(schedule: str, ranks: int, microbatches: int, chunks: int) -> str | None:
    """Why such a pipeline cannot be run, or None."""
    if schedule not in SCHEDULES:
        return f"unknown schedule {schedule!r}; expected one of {', '.join(SCHEDULES)}."
    if min(ranks, microbatches, chunks) < 1:
        return f"needs a rank, a microbatch and a chunk; got {ranks}, {microbatches}, {chunks}."
    if chunks > 1 and schedule not in ("interleaved", "zero-bubble"):
        return f"{schedule} has one chunk per rank, got {chunks}."
    rounds = max(1, microbatches // ranks)
    if schedule in ("interleaved", "zero-bubble") and microbatches % rounds:
        return (
            f"{schedule} needs microbatches in whole rounds; {microbatches} of {ranks} ranks are"
            f" {rounds} rounds and a rest."
        )
    return None


def _gpipe(pipeline: PipelineSpec, rank: int) -> list[Action]:
    counts = range(pipeline.microbatches)
    return [Action(ActionKind.FORWARD, rank, k) for k in counts] + [
        Action(ActionKind.BACKWARD, rank, k) for k in counts
    ]


def _1f1b(pipeline: PipelineSpec, rank: int) -> list[Action]:
    m = pipeline.microbatches
    warmup = min(m, pipeline.ranks - rank)
    order = [Action(ActionKind.FORWARD, rank, k) for k in range(warmup)]
    for k in range(m):
        order.append(Action(ActionKind.BACKWARD, rank, k))
        if warmup + k < m:
            order.append(Action(ActionKind.FORWARD, rank, warmup + k))
    return order


def _in_rounds(
    pipeline: PipelineSpec, rank: int, warmup_factor: int, backward: ActionKind
) -> list[Action]:
    """Rounds of about P microbatches go through chunk after chunk.

    Gradients of weights, where they are separate, start `rank` backward steps late: late ranks
    first send what earlier ranks wait for.
    """
    m, P, v = pipeline.microbatches, pipeline.ranks, pipeline.chunks
    per_round = m // max(1, m // P)
    total = m * v
    warmup = min(total, (v - 1) * per_round + warmup_factor * (P - 1 - rank))
    done: dict[tuple[ActionKind, int], int] = {}
    order: list[Action] = []
    backward_stages: list[int] = []

    def add(kind: ActionKind, stage: int) -> None:
        count = done.get((kind, stage), 0)
        done[kind, stage] = count + 1
        order.append(Action(kind, stage, count))

    def forward_stage(step: int) -> int:
        return step // per_round % v * P + rank

    def backward_stage(step: int) -> int:
        return (v - 1 - step // per_round % v) * P + rank

    weights = 0
    for step in range(total + warmup):
        if step < total:
            add(ActionKind.FORWARD, forward_stage(step))
        if step < warmup:
            continue
        backward_stages.append(backward_stage(step - warmup))
        add(backward, backward_stages[-1])
        if backward is ActionKind.INPUT and step - warmup >= rank:
            add(ActionKind.WEIGHT, backward_stages[weights])
            weights += 1
    if backward is ActionKind.INPUT:
        for stage in backward_stages[weights:]:
            add(ActionKind.WEIGHT, stage)
    return order


_ORDERS: Final[Mapping[ScheduleName, Callable[[PipelineSpec, int], list[Action]]]] = {
    "gpipe": _gpipe,
    "1f1b": _1f1b,
    "interleaved": partial(_in_rounds, warmup_factor=2, backward=ActionKind.BACKWARD),
    "zero-bubble": partial(_in_rounds, warmup_factor=1, backward=ActionKind.INPUT),
}


def rank_order(pipeline: PipelineSpec, rank: int) -> list[Action]:
    """What a rank does, in order."""
    if pipeline.schedule not in _ORDERS:
        raise InputError(f"{pipeline.schedule}: has no order; simulate it by events.")
    return _ORDERS[pipeline.schedule](pipeline, rank)


def input_of(action: Action) -> Action:
    """What an action waits for; gradients arrive as BACKWARD, whole or in halves."""
    is_half = action.kind is ActionKind.INPUT
    return action._replace(kind=ActionKind.BACKWARD) if is_half else action


def needs_input(pipeline: PipelineSpec, action: Action) -> bool:
    """Whether an action waits for another stage; gradients of weights never do."""
    first = 0 if action.kind is ActionKind.FORWARD else pipeline.stages - 1
    return action.kind is not ActionKind.WEIGHT and action.stage != first


def next_input(pipeline: PipelineSpec, action: Action) -> Action | None:
    """What an action gives to another one, if it does."""
    if action.kind is ActionKind.FORWARD:
        following = action.stage + 1
        return action._replace(stage=following) if following < pipeline.stages else None
    if action.kind is ActionKind.WEIGHT or action.stage == 0:
        return None
    return Action(ActionKind.BACKWARD, action.stage - 1, action.microbatch)
