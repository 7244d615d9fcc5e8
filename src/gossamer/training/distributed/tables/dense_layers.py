# SPDX-License-Identifier: Apache-2.0
"""Dense layers beside tables: their gradients averaged as int8, and no error is lost.

Once tables send touched rows only, the MLPs of a recommender are most of its bytes. They travel in
two hops: every rank owns a piece of the gradient, gets that piece as int8 from all ranks, adds it
up in int32 and sends the mean to all, as int8 again. Blocks of 256 numbers have a scale each, in
the first hop the maximum over ranks.

What rounding takes away waits where it happened and goes along with the next gradient: on each
rank e = (g + e) - S q with its own q, and at the owner the same of the mean. So whatever was
handed out so far, plus what waits, is the sum of all gradients. (Tables do without: a table of
errors would be as large as the table.)

Legend: W ranks, C numbers of a rank's piece, B blocks of N numbers.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.training.distributed.processes import check_alike
from gossamer.training.distributed.tables.codes import LARGEST, scales_of

_BLOCK = 256
_MOST = LARGEST["int8"]


class Int8Mean:
    """Averages dense gradients over the ranks of a group; all ranks call `reduce` together.

    Args:
        parameters: by name, the same on all ranks.
        group: the ranks; None for all.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], group: dist.ProcessGroup | None = None
    ) -> None:
        self._params, self._group = list(parameters.values()), group
        check_alike({f"parameter {n}": list(p.shape) for n, p in parameters.items()}, group)
        for name, param in parameters.items():
            if param.dtype is not torch.float32:
                raise InputError(f"{name}: int8 means are of float32 gradients, got {param.dtype}.")
        self._sizes = [param.numel() for param in self._params]
        self._world, self._rank = dist.get_world_size(group), dist.get_rank(group)
        unit = _BLOCK * self._world
        padded = -(-sum(self._sizes) // unit) * unit
        self.waiting_BN = torch.zeros(padded // _BLOCK, _BLOCK)
        self.waiting_here_BN = torch.zeros(padded // unit, _BLOCK)

    @property
    def sent_bytes(self) -> int:
        """Of a step, by this rank: two hops of int8, their scales, as rings send them."""
        blocks = len(self.waiting_BN)
        return round((self._world - 1) / self._world * blocks * (2 * _BLOCK + 3 * 4))

    @torch.no_grad()
    def reduce(self) -> None:
        """Replace the gradients by their mean over all ranks; a parameter without one has zeros."""
        own_BN = torch.zeros_like(self.waiting_BN)
        places = torch.split(own_BN.view(-1)[: sum(self._sizes)], self._sizes)
        for param, place in zip(self._params, places, strict=True):
            if param.grad is not None:
                place.copy_(param.grad.reshape(-1))
        fresh_BN = own_BN + self.waiting_BN
        peaks_B = fresh_BN.abs().amax(1)
        # MAX may drop a NaN where another rank has a number: infinity it does not drop.
        peaks_B.nan_to_num_(float("inf"), float("inf"))
        dist.all_reduce(peaks_B, dist.ReduceOp.MAX, group=self._group)
        if bool(peaks_B.isfinite().all()):
            mean_BN = self._two_hops(fresh_BN, scales_of(peaks_B, "int8"))
        else:
            # As it is, so that all ranks see it; what waits goes on waiting.
            dist.all_reduce(own_BN, group=self._group)
            mean_BN = own_BN.div_(self._world)
        found = torch.split(mean_BN.view(-1)[: sum(self._sizes)], self._sizes)
        for param, mean in zip(self._params, found, strict=True):
            param.grad = mean.view(param.shape).clone()

    def _two_hops(self, fresh_BN: torch.Tensor, scales_B: torch.Tensor) -> torch.Tensor:
        """The mean, and what could not be said of it in int8 noted."""
        codes_BN = _rounded(fresh_BN, scales_B)
        torch.sub(fresh_BN, codes_BN * scales_B[:, None], out=self.waiting_BN)
        came_WC = torch.empty_like(codes_BN).view(self._world, -1)
        dist.all_to_all_single(came_WC.view(-1), codes_BN.view(-1), group=self._group)
        mine = slice(*(len(self.waiting_here_BN) * (self._rank + side) for side in (0, 1)))
        sums_BN = came_WC.sum(0, dtype=torch.int32).view(-1, _BLOCK)
        mean_BN = sums_BN * (scales_B[mine, None] / self._world) + self.waiting_here_BN
        scales_here_B = scales_of(mean_BN.abs().amax(1), "int8")
        codes_here_BN = _rounded(mean_BN, scales_here_B)
        torch.sub(mean_BN, codes_here_BN * scales_here_B[:, None], out=self.waiting_here_BN)
        sent = torch.cat([scales_here_B.view(torch.int8), codes_here_BN.view(-1)])
        all_W = sent.new_empty(self._world, len(sent))
        dist.all_gather(list(all_W), sent, group=self._group)
        split = 4 * len(scales_here_B)
        scales_all = all_W[:, :split].contiguous().view(torch.float32).reshape(-1, 1)
        return all_W[:, split:].reshape(-1, _BLOCK) * scales_all

    def state_dict(self) -> dict[str, Any]:
        """What waits on this rank: every rank has its own."""
        return {"waiting": self.waiting_BN.clone(), "waiting_here": self.waiting_here_BN.clone()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on where `state_dict` of this rank was taken, with as many ranks."""
        held = {"waiting": self.waiting_BN, "waiting_here": self.waiting_here_BN}
        for name, tensor in held.items():
            found = state.get(name)
            if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype:
                got = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
                raise ArtifactError(
                    f"int8 mean, {name}: expected float32 {list(tensor.shape)}, got {got}. The"
                    " model or the number of ranks was another."
                )
        for name, tensor in held.items():
            tensor.copy_(state[name])


def _rounded(numbers_BN: torch.Tensor, scales_B: torch.Tensor) -> torch.Tensor:
    return (numbers_BN / scales_B[:, None]).round_().clamp_(-_MOST, _MOST).to(torch.int8)
