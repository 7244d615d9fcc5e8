# SPDX-License-Identifier: Apache-2.0
"""Messages between neighbouring stages: sent without waiting, announced as they arrive.

A receive of gloo cannot be polled: it completes only for who waits for it. So a thread per
direction waits, and announces what came in one queue; the next receive is posted before, because
gloo moves bytes only when both sides have spoken. Shapes are those that the stages agreed on once.
"""

import queue
import threading
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from gossamer.errors import DistributedError
from gossamer.training.distributed.pipeline.message_driven import Direction, Work


class StageMessages:
    """The messages of one stage in one step."""

    def __init__(self, stage: PipelineStage, num_microbatches: int) -> None:
        self._stage = stage
        self._num_microbatches = num_microbatches
        self._arrived: queue.SimpleQueue[Work | BaseException] = queue.SimpleQueue()
        self._sent: list[tuple[Any, Any]] = []
        sources: list[Direction] = []
        if not stage.is_first:
            sources.append("forward")
        if not stage.is_last:
            sources.append("backward")
        self._receivers = [
            threading.Thread(target=self._receive, args=(direction,), daemon=True)
            for direction in sources
        ]
        for receiver in self._receivers:
            receiver.start()

    def send(self, work: Work) -> None:
        """Send the result of `work` to where it is needed, if anywhere; does not wait."""
        if work.direction == "forward":
            ops = self._stage.get_fwd_send_ops(work.microbatch)
        else:
            ops = self._stage.get_bwd_send_ops(work.microbatch)
        for op in ops:
            sending = dist.isend(op.tensor, op.peer, self._stage.group, _tag(work))
            self._sent.append((sending, op.tensor))

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
        if work.direction == "forward":
            ops = self._stage.get_fwd_recv_ops(work.microbatch)
        else:
            ops = self._stage.get_bwd_recv_ops(work.microbatch)
        return [dist.irecv(op.tensor, op.peer, self._stage.group, _tag(work)) for op in ops]


def _tag(work: Work) -> int:
    return 2 * work.microbatch + (work.direction == "backward")
