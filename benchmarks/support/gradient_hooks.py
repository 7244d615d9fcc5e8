# SPDX-License-Identifier: Apache-2.0
"""Ways to exchange gradients that TASC is compared with, as communication hooks of DDP.

torch's own bf16 hook refuses gloo; it has no Top-K.
"""

import torch
import torch.distributed as dist

from gossamer.training.distributed.tasc import Tasc


def bf16_hook(state, bucket):
    """Gradients travel rounded to bf16."""
    buffer = bucket.buffer()
    small = buffer.div(dist.get_world_size()).to(torch.bfloat16)
    work = dist.all_reduce(small, async_op=True)
    return work.get_future().then(lambda done: buffer.copy_(done.value()[0]))


class TopK:
    """Residuals of Top-K, by bucket: made when buckets do not change any more.

    Args:
        density: entries that a rank sends as a part of all.
        start: dense steps before.
    """

    def __init__(self, density, start):
        self.density, self.start, self.step = density, start, 0
        self.held = {}


def topk_hook(state, bucket):
    """Each rank's largest entries go to all: one all-gather of indices and values."""
    buffer, num_ranks = bucket.buffer(), dist.get_world_size()
    structured = state.step >= state.start
    state.step += bucket.is_last()
    if not structured:
        work = dist.all_reduce(buffer.div_(num_ranks), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])
    held = state.held.setdefault(bucket.index(), torch.zeros_like(buffer))
    held += buffer
    count = max(1, round(state.density * len(held)))
    index = held.abs().topk(count, sorted=False).indices
    values = held[index]
    held[index] = 0
    sent = torch.cat([index.to(torch.int32), values.view(torch.int32)])
    gathered = torch.empty(num_ranks * len(sent), dtype=torch.int32)
    work = dist.all_gather_into_tensor(gathered, sent, async_op=True)

    def finish(done):
        buffer.zero_()
        for mine in gathered.view(num_ranks, 2, count):
            buffer.index_add_(0, mine[0].long(), mine[1].view(torch.float32))
        return buffer.div_(num_ranks)

    return work.get_future().then(finish)


class RandomBlocks(Tasc):
    """TASC with scores that all ranks draw alike instead of measuring them."""

    def _begin_step(self):
        self._settle()
        generator = torch.Generator().manual_seed(self.step)
        self._scores_R = torch.rand(self._num_blocks, generator=generator, dtype=torch.float64)
        super()._begin_step()
