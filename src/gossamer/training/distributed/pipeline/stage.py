# SPDX-License-Identifier: Apache-2.0
"""Stages of torch.distributed.pipelining that write down what they did when, as spans of time."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

# "backward" is a whole one; zero-bubble schedules split it into "input" and "weight".
Kind = Literal["forward", "backward", "input", "weight"]


class WorkSpan(NamedTuple):
    """One piece of work.

    Attributes:
        stage: who did it.
        kind: what.
        microbatch: on which.
        start: seconds on a clock that all stages share.
        stop: likewise.
    """

    stage: int
    kind: Kind
    microbatch: int
    start: float
    stop: float


def most_held(spans: Sequence[WorkSpan], stage: int) -> int:
    """Most microbatches that a stage held between forward and the end of their backward."""
    changes = sorted(
        (span.start, 1) if span.kind == "forward" else (span.stop, -1)
        for span in spans
        if span.stage == stage and span.kind != "input"
    )
    return max(accumulate((change for _, change in changes), initial=0))


class RecordedStage(PipelineStage):
    """Runs under every schedule, torch's and ours; `spans` is the timeline of the last step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spans: list[WorkSpan] = []
        self.sent_bytes = 0
        self._buffers_before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def clear_runtime_states(self) -> None:
        """Start a step."""
        self.spans, self.sent_bytes = [], 0
        super().clear_runtime_states()

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """The output of a microbatch."""
        with self._noted("forward", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        last_backward: Any = False,
    ) -> None:
        """The gradients of a microbatch, or of its input alone."""
        with self._noted("backward" if full_backward else "input", bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: Any = False) -> None:
        """The gradients of the weights, after those of the input."""
        with self._noted("weight", bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Sends of an output; networks take contiguous tensors only."""
        return self._counted(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Sends of an input's gradient; networks take contiguous tensors only."""
        return self._counted(super().get_bwd_send_ops(bwd_chunk_id))

    def _counted(self, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        for op in ops:
            op.tensor = op.tensor.contiguous()
            self.sent_bytes += op.tensor.nbytes
        return ops

    def _forward_metadata_inference(self, *args: Any, **kwargs: Any) -> Any:
        # torch finds shapes by running the stage on uninitialised numbers: statistics of batch
        # norms must not remember them.
        self._buffers_before = [(b, b.clone()) for b in self.submod.buffers()]
        return super()._forward_metadata_inference(*args, **kwargs)

    def _post_metadata_inference_cleanup(self) -> None:
        super()._post_metadata_inference_cleanup()
        for buffer, kept in self._buffers_before:
            if not torch.equal(buffer, kept):
                buffer.copy_(kept)
        self._buffers_before = []

    @contextmanager
    def _noted(self, kind: Kind, microbatch: int) -> Iterator[None]:
        # The wall clock is what processes of one machine share.
        start = time.time()
        yield
        self.spans.append(WorkSpan(self.stage_index, kind, microbatch, start, time.time()))
