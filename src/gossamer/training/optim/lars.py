# SPDX-License-Identifier: Apache-2.0
"""LARS: SGD with momentum, rescaled per layer to the size of its weights (arXiv 1708.03888)."""

from typing import Any

import torch
from torch import nn

from gossamer.training.optim.base import Master, Moments, SmallStateOptimizer
from gossamer.training.optim.moments import Moment
from gossamer.training.optim.norms import kept_norm
from gossamer.training.optim.sgd import BUFFER
from gossamer.training.optim.state_checks import refuse_number


class LARS(SmallStateOptimizer):
    """LARS as published: the momentum holds steps, learning rate included.

    local = trust |w| / (|g| + weight_decay |w|);  buffer = momentum buffer + lr local (g +
    weight_decay w);  w -= buffer. `local` is 1 where |w| or |g| is 0. A parameter is a layer: norms
    of compact values are those of the kept weights.

    Args:
        params: Parameters or groups, see `SmallStateOptimizer`.
        lr: global learning rate.
        momentum: decay of the running sum of steps; 0 keeps none.
        weight_decay: added to the gradient, and to the norm in the local rate.
        trust: how far a layer may move, relative to its size.
        adapt: False takes 1 for the local rate: for groups of biases and norms.
        master: "split", "split8" or "fp32", for bfloat16 parameters.
        moments: "fp32" or "8bit".
    """

    MOMENTS = (BUFFER,)

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        trust: float = 1e-3,
        adapt: bool = True,
        master: Master = "split",
        moments: Moments = "fp32",
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust": trust,
            "adapt": adapt,
        }
        super().__init__(params, defaults, master, moments)

    def _check_group(self, group: dict[str, Any]) -> None:
        name = type(self).__name__
        refuse_number(name, "lr", group["lr"], 0.0)
        refuse_number(name, "momentum", group["momentum"], 0.0, 1.0)
        refuse_number(name, "weight_decay", group["weight_decay"], 0.0)
        refuse_number(name, "trust", group["trust"], 0.0)
        super()._check_group(group)

    def moments_of(self, group: dict[str, Any]) -> tuple[Moment, ...]:
        """The running averages that a group keeps."""
        return self.MOMENTS if group["momentum"] else ()

    def _step_parameter(self, param: nn.Parameter, group: dict[str, Any]) -> None:
        state, _ = self._started(param, group)
        decay, momentum = group["weight_decay"], group["momentum"]
        rate = float(group["lr"]) * self._local_rate(param, group)
        for piece in self._pieces(param, state):
            move = piece.grad.add(piece.master, alpha=decay).mul_(rate)
            if momentum:
                buffer = BUFFER.read(state, piece.start, piece.stop)
                move = buffer.mul_(momentum).add_(move)
                BUFFER.write(state, piece.start, buffer, piece.offset)
            piece.master.sub_(move)

    def _local_rate(self, param: nn.Parameter, group: dict[str, Any]) -> float:
        if not group["adapt"] or param.grad is None:
            return 1.0
        kept = self._kept(param)
        weights = kept_norm(self.master_of(param).reshape(-1), kept)
        gradient = kept_norm(param.grad.reshape(-1).to(torch.float64), kept)
        if not weights or not gradient:
            return 1.0
        rate: float = group["trust"] * weights / (gradient + group["weight_decay"] * weights)
        return rate
