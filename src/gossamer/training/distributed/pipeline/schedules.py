# SPDX-License-Identifier: Apache-2.0
"""The schedules of a pipeline by name: torch's, and our own driven by messages.

Our own runs on the stages and in the interface of torch's schedules.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from gossamer.errors import DistributedError, InputError
from gossamer.training.distributed.pipeline.message_driven import (
    DEFAULT_SLACK,
    Direction,
    MessageDriven,
    Work,
)


class ScheduleMessageDriven(PipelineScheduleSingle):
    """Runs whichever of forward and backward has its message first, one stage per rank.

    Gradients are added up in the order of microbatches, whatever the network does, so a step gives
    the same bits as 1F1B.

    Args:
        stage: of this rank.
        n_microbatches: of a step.
        loss_fn: of the last stage's output and a target.
        slack: microbatches that a stage may hold beyond the bound of 1F1B.
    """

    def __init__(
        self, stage: PipelineStage, n_microbatches: int, loss_fn: Callable[..., Any], slack: int
    ) -> None:
        super().__init__(stage, n_microbatches, loss_fn, scale_grads=False)
        self._slack = slack

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        base: Any = self  # torch's side of this class has no types
        args, kwargs = base._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        base._initialize_stage(args[0], kwargs[0], (target_mbs or [None])[0], loss_kwargs)
        stage, count = base._stage, self._n_microbatches

        def run(work: Work) -> None:
            index = work.microbatch
            if work.direction == "forward":
                output = stage.forward_one_chunk(
                    index, args[index], kwargs[index], save_forward_output=return_outputs
                )
                base._maybe_compute_loss(stage, output, target_mbs, index, loss_kwargs)
            else:
                loss = base._maybe_get_loss(stage, index)
                stage.backward_one_chunk(index, loss=loss, last_backward=index == count - 1)

        decide = MessageDriven(stage.stage_index, stage.num_stages, count, self._slack)
        messages = StageMessages(stage, count)
        while not decide.finished:
            while (arrival := messages.next(wait=False)) is not None:
                decide.arrive(arrival)
            work = decide.start()
            if work is not None:
                run(work)
                messages.send(work)
            elif (arrival := messages.next(wait=True)) is not None:
                decide.arrive(arrival)
        messages.finish()
        base._update_losses(stage, losses)
        stage.perform_reduce_grad(count if self.scale_grads else 1)


class StageMessages:
    """The messages of one stage in one step."""

    def __init__(self, stage: PipelineStage, num_microbatches: int) -> None:
        self._stage = stage
        self._num_microbatches = num_microbatches
        self._arrived: queue.SimpleQueue[Work | BaseException] = queue.SimpleQueue()
        self._sent: list[tuple[Any, Any]] = []
        self._receivers = [
            threading.Thread(target=self._receive, args=(direction,), daemon=True)
            for direction, is_end in (("forward", stage.is_first), ("backward", stage.is_last))
            if not is_end
        ]
        for receiver in self._receivers:
            receiver.start()

    def send(self, work: Work) -> None:
        """Send the result of `work` to where it is needed, if anywhere; does not wait."""
        stage = self._stage
        is_forward = work.direction == "forward"
        ops = (stage.get_fwd_send_ops if is_forward else stage.get_bwd_send_ops)(work.microbatch)
        for op in ops:
            self._sent.append((dist.isend(op.tensor, op.peer, stage.group, _tag(work)), op.tensor))

    def next(self, *, wait: bool) -> Work | None:
        """The next arrival; None if there is none and `wait` is False."""
        try:
            arrival = self._arrived.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(arrival, BaseException):
            raise DistributedError(
                f"pipeline: stage {self._stage.stage_index} lost a neighbour: {arrival}"
            ) from arrival
        return arrival

    def finish(self) -> None:
        """Wait until everything that was sent has left."""
        for sending, _ in self._sent:
            sending.wait()
        for receiver in self._receivers:
            receiver.join()

    def _receive(self, direction: Direction) -> None:
        try:
            posted = self._post(Work(direction, 0))
            for microbatch in range(self._num_microbatches):
                waiting = posted
                if microbatch + 1 < self._num_microbatches:
                    posted = self._post(Work(direction, microbatch + 1))
                for receiving in waiting:
                    receiving.wait()
                self._arrived.put(Work(direction, microbatch))
        except BaseException as error:  # handed to the thread that waits for messages
            self._arrived.put(error)

    def _post(self, work: Work) -> list[Any]:
        stage = self._stage
        is_forward = work.direction == "forward"
        ops = (stage.get_fwd_recv_ops if is_forward else stage.get_bwd_recv_ops)(work.microbatch)
        return [dist.irecv(op.tensor, op.peer, stage.group, _tag(work)) for op in ops]


def _tag(work: Work) -> int:
    return 2 * work.microbatch + (work.direction == "backward")


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
