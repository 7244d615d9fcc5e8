# SPDX-License-Identifier: Apache-2.0
"""A stage of torch.distributed.pipelining that writes down what it does and when."""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from gossamer.training.distributed.pipeline.timeline import Kind, Span


class Stage(PipelineStage):
    """Runs under every schedule, torch's and ours; `spans` is the timeline of the last step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spans: list[Span] = []
        self.sent_bytes = 0
        self._buffers_before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def clear_runtime_states(self) -> None:
        """Start a step."""
        self.spans, self.sent_bytes = [], 0
        super().clear_runtime_states()

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """The output of a microbatch."""
        start = time.time()
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self._note("forward", fwd_chunk_id, start)
        return output

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        last_backward: Any = False,
    ) -> None:
        """The gradients of a microbatch, or of its input alone."""
        start = time.time()
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        self._note("backward" if full_backward else "input", bwd_chunk_id, start)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: Any = False) -> None:
        """The gradients of the weights, after those of the input."""
        start = time.time()
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        self._note("weight", bwd_chunk_id, start)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Sends of an output; networks take contiguous tensors only."""
        return self._counted(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Sends of an input's gradient; networks take contiguous tensors only."""
        return self._counted(super().get_bwd_send_ops(bwd_chunk_id))

    def _counted(self, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        for op in _contiguous(ops):
            self.sent_bytes += op.tensor.numel() * op.tensor.element_size()
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

    def _note(self, kind: Kind, microbatch: int, start: float) -> None:
        # The wall clock is what processes of one machine share.
        self.spans.append(Span(self.stage_index, kind, microbatch, start, time.time()))


def _contiguous(ops: list[dist.P2POp]) -> list[dist.P2POp]:
    for op in ops:
        op.tensor = op.tensor.contiguous()
    return ops
