# SPDX-License-Identifier: Apache-2.0
"""The schedules of a pipeline by name: torch's, and our own driven by messages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from gossamer.errors import InputError
from gossamer.training.distributed.pipeline.message_driven import DEFAULT_SLACK
from gossamer.training.distributed.pipeline.message_schedule import ScheduleMessageDriven

__all__ = [
    "PipelineSettings",
    "check_microbatches",
    "make_schedule",
    "rank_of_stage",
    "stages_per_rank",
]


class PipelineOrder(NamedTuple):
    """One way to run a pipeline.

    Attributes:
        make: torch's class, or one like it.
        stages_per_rank: how many there are if the user does not say; 0 if it may not be said.
        several: takes a list of stages.
        turns: the second half of the stages goes back from the last rank to the first.
    """

    make: Callable[..., Any]
    stages_per_rank: int = 1
    several: bool = False
    turns: bool = False


SCHEDULES: dict[str, PipelineOrder] = {
    "gpipe": PipelineOrder(ScheduleGPipe),
    "1f1b": PipelineOrder(Schedule1F1B),
    "interleaved": PipelineOrder(ScheduleInterleaved1F1B, 2, several=True),
    "zero-bubble": PipelineOrder(ScheduleInterleavedZeroBubble, 1, several=True),
    "zero-bubble-v": PipelineOrder(ScheduleZBVZeroBubble, 2, several=True, turns=True),
    "message-driven": PipelineOrder(ScheduleMessageDriven),
}


@dataclass(frozen=True)
class PipelineSettings:
    """How a pipeline runs.

    Attributes:
        num_microbatches: pieces of a batch.
        schedule: a name of `SCHEDULES`.
        stages: per rank; None is the schedule's own number.
        slack: for "message-driven": microbatches a stage may hold beyond the bound of 1F1B.
    """

    num_microbatches: int
    schedule: str = "1f1b"
    stages: int | None = None
    slack: int = DEFAULT_SLACK


def schedule_named(name: str) -> PipelineOrder:
    """The schedule of a name."""
    if name not in SCHEDULES:
        raise InputError(f"pipeline: schedule must be one of {', '.join(SCHEDULES)}; got {name!r}.")
    return SCHEDULES[name]


def stages_per_rank(name: str, wanted: int | None) -> int:
    """How many stages a rank gets."""
    schedule = schedule_named(name)
    fixed = schedule.stages_per_rank
    if wanted is None or wanted == fixed:
        return fixed
    if not schedule.several or schedule.turns or wanted < 1:
        raise InputError(
            f"pipeline: schedule {name!r} has {fixed} stage{'s' * (fixed > 1)} per rank; got"
            f" {wanted}. Only interleaved and zero-bubble take another number."
        )
    return wanted


def rank_of_stage(name: str, stage: int, num_ranks: int) -> int:
    """Who runs a stage."""
    lap, place = divmod(stage, num_ranks)
    return num_ranks - 1 - place if schedule_named(name).turns and lap % 2 else place


def check_microbatches(name: str, num_microbatches: int, num_ranks: int) -> None:
    """Refuse a number of microbatches that a schedule cannot run."""
    if num_microbatches < 1:
        raise InputError(f"pipeline: at least 1 microbatch is needed; got {num_microbatches}.")
    rounds = max(1, num_microbatches // num_ranks)
    if name in ("interleaved", "zero-bubble") and num_microbatches % rounds:
        raise InputError(
            f"pipeline: schedule {name!r} on {num_ranks} ranks needs fewer microbatches than ranks"
            f" or a multiple of {num_ranks}; got {num_microbatches}."
        )


def make_schedule(settings: PipelineSettings, stages: list[Any], loss: Any) -> Any:
    """The schedule object of a rank that has `stages`."""
    name, count = settings.schedule, settings.num_microbatches
    schedule = schedule_named(name)
    if name == "message-driven":
        return ScheduleMessageDriven(stages[0], count, loss, settings.slack)
    if name == "1f1b" and count < stages[0].num_stages:
        # torch refuses; with so few microbatches no stage ever has to hold one back, so all
        # forwards come first, which is GPipe.
        return ScheduleGPipe(stages[0], count, loss_fn=loss, scale_grads=False)
    given = stages if schedule.several else stages[0]
    return schedule.make(given, count, loss_fn=loss, scale_grads=False)
