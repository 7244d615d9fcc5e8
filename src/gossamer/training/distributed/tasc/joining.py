# SPDX-License-Identifier: Apache-2.0
"""How TASC joins a DDP model: as its communication hook, and past its buckets where that works."""

from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gossamer.training.distributed.tasc.direct import DirectSteps, why_not_direct
from gossamer.training.distributed.tasc.exchange import Tasc


def attach(ddp: DistributedDataParallel, *, through_buckets: bool = False, **settings: Any) -> Tasc:
    """Let a DDP model communicate by TASC; before its first backward. Settings are those of `Tasc`.

    `static_graph`, `gradient_as_bucket_view` and `no_sync` work as with stock DDP.

    Args:
        ddp: the model.
        through_buckets: structured steps go through DDP's buckets, as they do anyway where DDP has
            sparse gradients or casts, or parameters are not in the memory of the CPU.
        settings: of `Tasc`.
    """
    tasc = Tasc(ddp.module, group=ddp.process_group, **settings)
    join(ddp, tasc, through_buckets=through_buckets)
    return tasc


def join(ddp: DistributedDataParallel, tasc: Tasc, *, through_buckets: bool = False) -> None:
    """What `attach` does, for a Tasc that is there already."""
    ddp.register_comm_hook(tasc, tasc_hook)
    if not through_buckets and why_not_direct(ddp) is None:
        DirectSteps(ddp, tasc)
        tasc.past_buckets = True


def tasc_hook(state: Tasc, bucket: GradBucket) -> Future[torch.Tensor]:
    """The communication hook of DDP; `attach` registers it."""
    return state.reduce(bucket)
