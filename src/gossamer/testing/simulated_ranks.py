# SPDX-License-Identifier: Apache-2.0
"""Ranks of TASC in one process: as many as wanted, at the cost of their arithmetic."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

from gossamer.training.distributed.tasc import Tasc


class GradientBucket:
    """Stands for the bucket that DDP gives to a hook."""

    def __init__(
        self, params: Sequence[nn.Parameter], gradients: Sequence[torch.Tensor], last: bool = True
    ) -> None:
        self._params, self._last = list(params), last
        self._buffer = torch.cat([gradient.reshape(-1) for gradient in gradients])

    def parameters(self) -> list[nn.Parameter]:
        """In the order of the buffer."""
        return self._params

    def buffer(self) -> torch.Tensor:
        """All gradients, flat."""
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        """Views of the buffer in the shapes of the parameters."""
        pieces = torch.split(self._buffer, [param.numel() for param in self._params])
        return [piece.view(param.shape) for piece, param in zip(pieces, self._params, strict=True)]

    def index(self) -> int:
        """All simulated steps have one bucket, or name them otherwise."""
        return 0

    def is_last(self) -> bool:
        """Whether the step ends with this bucket."""
        return self._last


class _Meeting:
    """Adds what all ranks bring, when the last has come."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._waiting: list[tuple[torch.Tensor, Future[list[torch.Tensor]]]] = []

    def bring(self, tensor: torch.Tensor) -> Future[list[torch.Tensor]]:
        future: Future[list[torch.Tensor]] = Future()
        self._waiting.append((tensor, future))
        if len(self._waiting) == self.num_ranks:
            come, self._waiting = self._waiting, []
            total = torch.stack([each for each, _ in come]).sum(0)
            for each, done in come:
                each.copy_(total)
                done.set_result([each])
        return future


class SimulatedRank(Tasc):
    """One of several that meet in one process; no forecast is measured."""

    def __init__(self, model: nn.Module, meeting: _Meeting, **settings: Any) -> None:
        self._meeting = meeting
        super().__init__(model, min_gain=0, **settings)

    def _count_ranks(self) -> int:
        return self._meeting.num_ranks

    def _all_reduce(self, tensor: torch.Tensor) -> Future[list[torch.Tensor]]:
        return self._meeting.bring(tensor)


class SimulatedRanks:
    """`num_ranks` ranks of TASC around one model, which they all have alike.

    Args:
        model: whose gradients are reduced.
        num_ranks: W.
        settings: of `Tasc`.
    """

    def __init__(self, model: nn.Module, num_ranks: int, **settings: Any) -> None:
        self.params = [param for param in model.parameters() if param.requires_grad]
        meeting = _Meeting(num_ranks)
        self.ranks = [SimulatedRank(model, meeting, **settings) for _ in range(num_ranks)]

    def reduce(self, gradients: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """One step: the means that all ranks get, from the gradients of each."""
        buckets = [GradientBucket(self.params, mine) for mine in gradients]
        futures = [
            rank.reduce(cast("GradBucket", bucket))  # a bucket in all that is used
            for rank, bucket in zip(self.ranks, buckets, strict=True)
        ]
        for future in futures:
            future.wait()
        return buckets[0].gradients()
