# SPDX-License-Identifier: Apache-2.0
"""Hutchinson's estimate of the trace of the Hessian, block by block.

For v with random signs E[v * (H v)] is the diagonal of H, so its sums over blocks are their traces
(PyHessian, arXiv 1912.07145). Exact with one probe where H is diagonal. A probe costs about two
backward passes.
"""

import torch
import torch.distributed as dist
from torch import nn

from gossamer.errors import InputError
from gossamer.training.distributed.tasc.exchange import Tasc


class CurvatureProbe:
    """Running traces for the scores of `tasc`, the same on all ranks.

    Args:
        tasc: whose scores are weighted.
        model: the module inside DDP.
        seed: of the signs, the same on all ranks: their losses differ, their probes must not.
        decay: of the running mean; the first measurement counts as a whole.
        group: the ranks; None for all.
    """

    def __init__(
        self,
        tasc: Tasc,
        model: nn.Module,
        *,
        seed: int = 0,
        decay: float = 0.9,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if not 0 <= decay < 1:
            raise InputError(f"CurvatureProbe: decay must be in [0, 1), got {decay}.")
        self._tasc, self._group = tasc, group
        self._params = dict(model.named_parameters())
        self._seed, self._decay = seed, decay
        self.num_probes = 0
        self._traces_R: torch.Tensor | None = None

    def measure(self, loss: torch.Tensor, num_probes: int = 1) -> torch.Tensor:
        """Probe the curvature of a loss that still has its graph; the running traces [R].

        Compute the loss on the module inside DDP, on a small batch, with dropout off. Where an
        operation has no second derivative (fused attention has none on CPUs) torch's error says so.
        """
        blocks = [(self._params[name], cut, span) for name, cut, span in self._tasc.blocks()]
        params = [param for param, _, _ in blocks]
        gradients = torch.autograd.grad(loss, params, create_graph=True)
        total_R = torch.zeros(sum(cut.num_blocks for _, cut, _ in blocks), dtype=torch.float64)
        for probe in range(num_probes):
            generator = torch.Generator().manual_seed(self._seed + self.num_probes)
            self.num_probes += 1
            signs = [
                torch.randint(0, 2, g.shape, generator=generator).mul_(2).sub_(1).to(g)
                for g in gradients
            ]
            again = probe + 1 < num_probes
            products = torch.autograd.grad(gradients, params, signs, retain_graph=again)
            for (_, cut, span), sign, product in zip(blocks, signs, products, strict=True):
                total_R[span] += cut.in_blocks((sign * product).reshape(-1)).sum(1).double().cpu()
        total_R /= num_probes * dist.get_world_size(self._group)
        dist.all_reduce(total_R, group=self._group)
        if self._traces_R is None:
            self._traces_R = total_R
        else:
            self._traces_R = self._decay * self._traces_R + (1 - self._decay) * total_R
        self._tasc.set_curvature(self._traces_R)
        return self._traces_R
