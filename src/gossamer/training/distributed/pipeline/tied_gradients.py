# SPDX-License-Identifier: Apache-2.0
"""A weight that several stages use: each adds up all gradients in the same order.

Stages of one rank share the Parameter, so autograd has added there. Ranks exchange what they have
and add in the order of ranks: the same bits everywhere, so the copies never drift apart.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from gossamer.training.distributed.pipeline.cutting import TiedWeight


def sum_tied_gradients(
    tied: tuple[TiedWeight, ...],
    modules: Mapping[int, nn.Module],
    rank_of: Callable[[int], int],
    group: dist.ProcessGroup | None,
) -> None:
    """Add the gradients of tied weights over the ranks that hold them.

    Args:
        tied: which weights, by their names in every stage.
        modules: stages of this rank, by number.
        rank_of: rank in the group that runs a stage.
        group: of the pipeline.
    """
    me = dist.get_rank(group)
    for weight in tied:
        ranks = sorted({rank_of(stage) for stage in weight.stages})
        if me not in ranks or len(ranks) == 1:
            continue
        stage, name = next(
            (stage, name)
            for stage, name in zip(weight.stages, weight.names, strict=True)
            if stage in modules
        )
        parameter = modules[stage].get_parameter(name)
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        _sum_over(ranks, me, _local(parameter.grad), group)


def _sum_over(
    ranks: list[int], me: int, gradient: torch.Tensor, group: dist.ProcessGroup | None
) -> None:
    own = gradient.contiguous()
    gradients = {me: own}
    works: list[Any] = []
    for other in ranks:
        if other == me:
            continue
        peer = other if group is None else dist.get_global_rank(group, other)
        gradients[other] = torch.empty_like(own)
        works.append(dist.irecv(gradients[other], peer, group))
        works.append(dist.isend(own, peer, group))
    for work in works:
        work.wait()
    total = gradients[ranks[0]].clone()
    for other in ranks[1:]:
        total += gradients[other]
    gradient.copy_(total)


def _local(gradient: torch.Tensor) -> torch.Tensor:
    # Shards of the data-parallel ranks are cut alike in all stages.
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
