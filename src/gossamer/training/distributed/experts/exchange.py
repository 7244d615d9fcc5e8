# SPDX-License-Identifier: Apache-2.0
"""Tokens travel to the rank that has their expert, and what it made of them travels back.

Counts go first, in one small message, so that every rank knows how many rows come from where. Then
rows go in one uneven all-to-all; while they are under way, a rank computes those that stay. The
backward goes the same ways back, and again rows that stay are computed meanwhile. All ranks take
all steps, whether they have tokens or not.

Legend: S pairs of token and expert, D width, E experts, R ranks, e = E / R experts of a rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

# Computes rows that are sorted by expert; how many each has.
Compute = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


@dataclass
class _Flight:
    """Rows between two points of a step.

    Attributes:
        group: the ranks.
        there: rows that go to each rank.
        here: rows that come from each rank.
        work: the message that is under way.
        grads: of what was sent, once backward has sent it back.
        sent: bytes that this rank sent.
    """

    group: dist.ProcessGroup
    there: list[int]
    here: list[int]
    work: Any = None
    grads: torch.Tensor | None = None
    sent: int = 0

    def send(self, rows_SD: torch.Tensor, *, back: bool) -> torch.Tensor:
        """Begin to send; what will be there once `work` is done."""
        there, here = (self.here, self.there) if back else (self.there, self.here)
        arriving = rows_SD.new_empty(sum(here), rows_SD.shape[1])
        self.work = dist.all_to_all_single(
            arriving, rows_SD.contiguous(), here, there, group=self.group, async_op=True
        )
        self.sent += rows_SD.nbytes
        return arriving

    def land(self) -> None:
        """Wait for the message."""
        self.work.wait()
        self.work = None


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_SD: torch.Tensor, flight: _Flight) -> torch.Tensor:
        ctx.flight = flight
        return flight.send(rows_SD, back=False)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        # The gradient that arrived here was sent by `_Land`; what is given is none.
        flight: _Flight = ctx.flight
        flight.land()
        grads, flight.grads = flight.grads, None
        return grads, None


class _Land(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, arriving_SD: torch.Tensor, flight: _Flight) -> torch.Tensor:
        ctx.flight = flight
        flight.land()
        return arriving_SD.view_as(arriving_SD)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        flight: _Flight = ctx.flight
        flight.grads = flight.send(grads[0], back=True)
        return grads[0], None


class ExpertExchange:
    """Has the tokens of all ranks computed where their experts are; called as `nn.moe` says.

    Args:
        group: the ranks, of which each has as many experts, in their order.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._flights: list[_Flight] = []

    @property
    def sent_bytes(self) -> int:
        """Rows that the last call sent, forward and, once it is done, backward."""
        return sum(flight.sent for flight in self._flights)

    def __call__(self, x_SD: torch.Tensor, counts: Sequence[int], compute: Compute) -> torch.Tensor:
        """What the experts make of `x_SD`, which is sorted by expert."""
        counts_RE = self._counts_of_all(counts, x_SD.device)
        own, each = self.rank, len(counts) // self.ranks
        to_R = counts_RE[own].view(self.ranks, each).sum(1).tolist()
        mine_Re = counts_RE[:, own * each : (own + 1) * each].clone()
        own_e = mine_Re[own].tolist()
        mine_Re[own] = 0
        before = sum(to_R[:own])
        after = len(x_SD) - before - to_R[own]
        first, staying, last = torch.split(x_SD, [before, to_R[own], after])
        there = [0 if rank == own else rows for rank, rows in enumerate(to_R)]
        out = _Flight(self.group, there, mine_Re.sum(1).tolist())
        home = _Flight(self.group, out.here, out.there)
        self._flights = [out, home]
        arriving = _Depart.apply(torch.cat([first, last]), out)  # type: ignore[no-untyped-call]
        stayed = compute(staying, own_e)
        arrived = _Land.apply(arriving, out)  # type: ignore[no-untyped-call]
        # Rows come rank by rank; they are computed expert by expert.
        expert_S = torch.arange(each).repeat(self.ranks).repeat_interleave(mine_Re.flatten().cpu())
        order = expert_S.argsort(stable=True).to(x_SD.device)
        made = compute(arrived.index_select(0, order), mine_Re.sum(0).tolist())
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        returning = _Depart.apply(made.index_select(0, back), home)  # type: ignore[no-untyped-call]
        returned = _Land.apply(returning, home)  # type: ignore[no-untyped-call]
        head, tail = torch.split(returned, [before, after])
        return torch.cat([head, stayed, tail])

    def _counts_of_all(self, counts: Sequence[int], device: torch.device) -> torch.Tensor:
        mine = torch.tensor(counts, device=device)
        counts_RE = mine.new_empty(self.ranks, len(counts))
        dist.all_gather(list(counts_RE.unbind(0)), mine, group=self.group)
        return counts_RE


def sent_tokens(model: nn.Module) -> int:
    """Bytes of tokens that this rank sent in the last step, to experts and back, and gradients."""
    exchanges = (getattr(module, "exchange", None) for module in model.modules())
    return sum(e.sent_bytes for e in exchanges if isinstance(e, ExpertExchange))
