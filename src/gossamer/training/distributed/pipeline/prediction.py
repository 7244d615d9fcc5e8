# SPDX-License-Identifier: Apache-2.0
"""Forward through the stages of a pipeline, for microbatches of any shape.

Training fixes shapes once; evaluation must take the odd last batch of a data set, so every message
here says its shape first. Nothing is held for a backward, so no bound on microbatches is needed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64)
_MAX_DIMS = 8


def predict(
    modules: Mapping[int, nn.Module],
    rank_of: Callable[[int], int],
    num_stages: int,
    group: dist.ProcessGroup | None,
    batches: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
    device: torch.device,
) -> torch.Tensor:
    """The outputs of all microbatches as one batch, on every rank.

    All ranks walk through (microbatch, stage) in one order, so that blocking messages cannot wait
    for each other in a circle.

    Args:
        modules: stages of this rank, by number.
        rank_of: rank in the group that runs a stage.
        num_stages: of the pipeline.
        group: its ranks.
        batches: positional and keyword arguments of the model for every microbatch.
        device: where messages are received.
    """
    me = dist.get_rank(group)
    outputs = []
    with torch.no_grad():
        for inputs, keywords in batches:
            given: Any = inputs
            for stage, module in sorted(modules.items()):
                if stage and rank_of(stage - 1) != me:
                    given = (_receive(_global(rank_of(stage - 1), group), group, device),)
                output = module(*given, **keywords)
                given = (output,)
                if stage < num_stages - 1 and rank_of(stage + 1) != me:
                    _send(output, _global(rank_of(stage + 1), group), group)
            outputs.append(given[0])
    merged = torch.cat(outputs) if num_stages - 1 in modules else None
    return broadcast_tensor(merged, rank_of(num_stages - 1), group, device)


def broadcast_tensor(
    tensor: torch.Tensor | None, rank: int, group: dist.ProcessGroup | None, device: torch.device
) -> torch.Tensor:
    """What `rank` of the group gave, on all its ranks; the others give None."""
    source = _global(rank, group)
    header = (
        _header(tensor) if tensor is not None else torch.empty(_MAX_DIMS + 2, dtype=torch.int64)
    )
    header = header.to(device)
    dist.broadcast(header, source, group)
    tensor = _empty(header, device) if tensor is None else tensor.contiguous()
    dist.broadcast(tensor, source, group)
    return tensor


def _global(rank: int, group: dist.ProcessGroup | None) -> int:
    return rank if group is None else dist.get_global_rank(group, rank)


def _header(tensor: torch.Tensor) -> torch.Tensor:
    dims = list(tensor.shape) + [0] * (_MAX_DIMS - tensor.ndim)
    return torch.tensor([_DTYPES.index(tensor.dtype), tensor.ndim, *dims])


def _empty(header: torch.Tensor, device: torch.device) -> torch.Tensor:
    dtype, num_dims, *dims = header.tolist()
    return torch.empty(dims[:num_dims], dtype=_DTYPES[dtype], device=device)


def _send(tensor: torch.Tensor, peer: int, group: dist.ProcessGroup | None) -> None:
    dist.send(_header(tensor).to(tensor.device), peer, group)
    dist.send(tensor.contiguous(), peer, group)


def _receive(peer: int, group: dist.ProcessGroup | None, device: torch.device) -> torch.Tensor:
    header = torch.empty(_MAX_DIMS + 2, dtype=torch.int64, device=device)
    dist.recv(header, peer, group)
    tensor = _empty(header, device)
    dist.recv(tensor, peer, group)
    return tensor
