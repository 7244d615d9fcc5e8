# SPDX-License-Identifier: Apache-2.0
"""Pipeline schedules as orders of work: which rank does what, one after the other.

A pipeline of P ranks with v chunks each has P v stages; stage s lies on rank s mod P. Interleaved
and zero-bubble orders are those of `torch.distributed.pipelining`. The message-driven schedule has
no order: whatever arrives first is run.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from gossamer.errors import InputError

__all__ = ["SCHEDULES"]

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "message-driven"]
SCHEDULES: Final[tuple[ScheduleName, ...]] = get_args(ScheduleName)


# Work on one microbatch: forward, backward, or backward in two halves.
ActionKind = Literal["forward", "backward", "input", "weight"]


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


def rank_order(pipeline: PipelineSpec, rank: int) -> list[Action]:
    """What a rank does, in order."""
    if pipeline.schedule == "message-driven":
        raise InputError(f"{pipeline.schedule}: has no order; simulate it by events.")
    return (_in_turns if pipeline.schedule in ("gpipe", "1f1b") else _in_rounds)(pipeline, rank)


def _in_turns(pipeline: PipelineSpec, rank: int) -> list[Action]:
    """Forwards, all of them for gpipe, until the first backward comes; then one of each."""
    m = pipeline.microbatches
    warmup = m if pipeline.schedule == "gpipe" else min(m, pipeline.ranks - rank)
    order = [Action("forward", rank, k) for k in range(warmup)]
    for k in range(m):
        order.append(Action("backward", rank, k))
        if warmup + k < m:
            order.append(Action("forward", rank, warmup + k))
    return order


def _in_rounds(pipeline: PipelineSpec, rank: int) -> list[Action]:
    """Rounds of about P microbatches go through chunk after chunk.

    Gradients of weights, where they are separate, start `rank` backward steps late: late ranks
    first send what earlier ranks wait for.
    """
    m, P, v = pipeline.microbatches, pipeline.ranks, pipeline.chunks
    splits = pipeline.splits_backward
    per_round = m // max(1, m // P)
    total = m * v
    warmup = min(total, (v - 1) * per_round + (1 if splits else 2) * (P - 1 - rank))
    done: Counter[tuple[ActionKind, int]] = Counter()
    order: list[Action] = []
    backward_stages: list[int] = []

    def add(kind: ActionKind, stage: int) -> None:
        order.append(Action(kind, stage, done[kind, stage]))
        done[kind, stage] += 1

    for step in range(total + warmup):
        if step < total:
            add("forward", step // per_round % v * P + rank)
        late = step - warmup
        if late < 0:
            continue
        backward_stages.append((v - 1 - late // per_round % v) * P + rank)
        add("input" if splits else "backward", backward_stages[-1])
        if splits and late >= rank:
            add("weight", backward_stages[late - rank])
    if splits:
        for stage in backward_stages[max(0, total - rank) :]:
            add("weight", stage)
    return order


def input_of(action: Action) -> Action:
    """What an action waits for; gradients arrive as BACKWARD, whole or in halves."""
    if action.kind == "input":
        return action._replace(kind="backward")
    return action


def needs_input(pipeline: PipelineSpec, action: Action) -> bool:
    """Whether an action waits for another stage; gradients of weights never do."""
    first = 0 if action.kind == "forward" else pipeline.stages - 1
    return action.kind != "weight" and action.stage != first


def next_input(pipeline: PipelineSpec, action: Action) -> Action | None:
    """What an action gives to another one, if it does."""
    if action.kind == "forward":
        following = action.stage + 1
        return action._replace(stage=following) if following < pipeline.stages else None
    if action.kind == "weight" or action.stage == 0:
        return None
    return Action("backward", action.stage - 1, action.microbatch)
