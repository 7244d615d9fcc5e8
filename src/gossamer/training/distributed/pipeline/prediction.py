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

from gossamer.training.distributed.processes.messages import (
    broadcast_tensor,
    global_rank,
    receive_tensor,
    send_tensor,
)


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
                    given = (receive_tensor(global_rank(rank_of(stage - 1), group), group, device),)
                output = module(*given, **keywords)
                given = (output,)
                if stage < num_stages - 1 and rank_of(stage + 1) != me:
                    send_tensor(output, global_rank(rank_of(stage + 1), group), group)
            outputs.append(given[0])
    merged = torch.cat(outputs) if num_stages - 1 in modules else None
    return broadcast_tensor(merged, rank_of(num_stages - 1), group, device)
