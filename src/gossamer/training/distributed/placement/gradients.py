# SPDX-License-Identifier: Apache-2.0
"""Gradients of replicas, added up: by stock DDP, or in one go after a pipeline.

Kept values are the Parameters, so exactly as many numbers are reduced as weights are kept. A ring
of more than two ranks adds the terms of an element in an order that depends on its place in the
message. So places are the same in every step: a run that was stopped gives the bits of one that was
not.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

Wire = Literal["full", "bf16"]


class _SameBuckets(DistributedDataParallel):
    """DDP whose buckets are final before the first step, last parameters first.

    Stock DDP reduces everything in one bucket first and then takes the order in which gradients
    came. For layers that are used in the order of their registration that is this one, so nothing
    is lost. `find_unused_parameters` would fix buckets as well, at the price of a look at the whole
    graph and a further message per step.
    """

    def _build_params_for_reducer(self) -> tuple[list[nn.Parameter], list[bool]]:
        parameters, are_sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return parameters[::-1], are_sparse[::-1]


def replicated(
    model: nn.Module,
    group: dist.ProcessGroup | None,
    wire: Wire,
    apart: Collection[nn.Parameter] = (),
) -> nn.Module:
    """`model` in DDP; every step adds gradients in the same order.

    Buffers do not travel: masks would cost a third of the values' bytes at every step.

    Args:
        model: on every rank the same.
        group: the replicas.
        wire: how gradients travel.
        apart: parameters that somebody else adds up; if there are no others, no DDP is needed.
    """
    held = {id(param) for param in apart}
    if held and all(id(p) in held for p in model.parameters() if p.requires_grad):
        return model
    # The name of a parameter in each module that has it: a shared one has several.
    model._ddp_params_and_buffers_to_ignore = [  # type: ignore[assignment]
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, param in module.named_parameters(recurse=False)
        if id(param) in held
    ]
    try:
        wrapped = _SameBuckets(
            model, process_group=group, forward_sync_buffers=False, init_sync=False
        )
    finally:
        del model._ddp_params_and_buffers_to_ignore
    # What DDP does for a rank that has no more batches: all gradients count as seen, in order.
    wrapped.reducer._push_all_rebuilt_params()
    wrapped.reducer._rebuild_buckets()
    if wire == "bf16":
        wrapped.register_comm_hook(group, _bf16)
    return wrapped


def _bf16(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    # DDP refuses the stock hook by its name where there is no GPU; gloo reduces bf16 all the same.
    return bf16_compress_hook(group, bucket)


def average(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup, wire: Wire) -> None:
    """Replace gradients by their mean over the group, one message per dtype."""
    by_dtype = defaultdict(list)
    for param in parameters:
        if param.grad is not None:
            by_dtype[param.grad.dtype].append(param.grad)
    count = dist.get_world_size(group)
    for grads in by_dtype.values():
        flat = torch.cat([grad.flatten() for grad in grads]).div_(count)
        sent = flat.bfloat16() if wire == "bf16" else flat
        dist.all_reduce(sent, group=group)
        parts = torch.split(sent.to(flat.dtype), [grad.numel() for grad in grads])
        for grad, part in zip(grads, parts, strict=True):
            grad.copy_(part.view_as(grad))
