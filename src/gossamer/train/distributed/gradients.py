# SPDX-License-Identifier: Apache-2.0
"""Gradients of replicas, added up: by stock DDP, or in one go after a pipeline.

Kept values are the Parameters, so exactly as many numbers are reduced as weights are kept.
"""

from collections.abc import Iterable
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

Wire = Literal["full", "bf16"]


def replicated(
    model: nn.Module, group: dist.ProcessGroup | None, wire: Wire
) -> DistributedDataParallel:
    """`model` in stock DDP.

    Buffers do not travel: masks would cost a third of the values' bytes at every step.
    """
    wrapped = DistributedDataParallel(
        model, process_group=group, forward_sync_buffers=False, init_sync=False
    )
    if wire == "bf16":
        wrapped.register_comm_hook(group, _bf16)
    return wrapped


def _bf16(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    # DDP refuses the stock hook by its name where there is no GPU; gloo reduces bf16 all the same.
    return bf16_compress_hook(group, bucket)


def average(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup, wire: Wire) -> None:
    """Replace gradients by their mean over the group, one message per dtype."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for param in parameters:
        if param.grad is not None:
            by_dtype.setdefault(param.grad.dtype, []).append(param.grad)
    count = dist.get_world_size(group)
    for grads in by_dtype.values():
        flat = torch.cat([grad.flatten() for grad in grads]).div_(count)
        sent = flat.bfloat16() if wire == "bf16" else flat
        dist.all_reduce(sent, group=group)
        parts = torch.split(sent.to(flat.dtype), [grad.numel() for grad in grads])
        for grad, part in zip(grads, parts, strict=True):
            grad.copy_(part.view_as(grad))
