# SPDX-License-Identifier: Apache-2.0
"""Optimizers with one running sum: SGD, and LARS (arXiv 1708.03888).

SGD has Nesterov's variant and decoupled weight decay. LARS rescales its steps per layer to the size
of the weights.
"""

from math import inf
from typing import Any, ClassVar

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.training.optim.base import Master, Moments, ParamGroup, SmallStateOptimizer
from gossamer.training.optim.codes import StoredMoment
from gossamer.training.optim.pieces import stretches

BUFFER = StoredMoment("momentum_buffer", signed=True)


class SGD(SmallStateOptimizer):
    """SGD whose fp32 results without weight decay equal `torch.optim.SGD(foreach=False)`.

    Args:
        params: Parameters or groups, see `SmallStateOptimizer`.
        lr: learning rate.
        momentum: decay of the running sum of gradients; 0 keeps none.
        nesterov: look one step ahead; needs momentum.
        weight_decay: decoupled, unlike torch's: weights shrink by lr * weight_decay per step, and
            the momentum does not see it.
        master: "split", "split8", "fp32" or "wide", for 16-bit parameters.
        moments: "fp32" or "8bit".
    """

    MOMENTS = (BUFFER,)
    RANGES: ClassVar = {"lr": inf, "momentum": 1.0, "weight_decay": inf}

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        *,
        master: Master = "split",
        moments: Moments = "fp32",
    ) -> None:
        super().__init__(
            params,
            master,
            moments,
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
        )

    def _check_group(self, group: ParamGroup) -> None:
        super()._check_group(group)
        if group["nesterov"] and not group["momentum"]:
            raise InputError(f"{type(self).__name__}: nesterov needs momentum greater than 0.")

    def _step_parameter(self, param: nn.Parameter, group: ParamGroup) -> None:
        state, step = self._started(param, group)
        lr, momentum = float(group["lr"]), group["momentum"]
        for part in stretches(param, state, self.moments_of(group)):
            direction = part.grad
            for buffer in part.moments:
                # torch starts with the gradient itself: 0 * momentum + gradient is the same bits,
                # but for the sign of zeros.
                if step == 1:
                    buffer.copy_(part.grad)
                else:
                    buffer.mul_(momentum).add_(part.grad)
                direction = part.grad.add(buffer, alpha=momentum) if group["nesterov"] else buffer
            if group["weight_decay"]:
                part.master.mul_(1 - lr * group["weight_decay"])
            part.master.add_(direction, alpha=-lr)


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
        clipped: a layer's rate is the smaller one of `local` and lr, not their product; others call
            this LARC.
        adapt: False takes 1 for the local rate: for groups of biases and norms.
        master: "split", "split8", "fp32" or "wide", for 16-bit parameters.
        moments: "fp32" or "8bit".
    """

    MOMENTS = (BUFFER,)
    RANGES: ClassVar = {"lr": inf, "momentum": 1.0, "weight_decay": inf, "trust": inf}

    def __init__(  # noqa: PLR0913
        self,
        params: Any,
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        trust: float = 1e-3,
        clipped: bool = False,
        adapt: bool = True,
        master: Master = "split",
        moments: Moments = "fp32",
    ) -> None:
        super().__init__(
            params,
            master,
            moments,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            trust=trust,
            clipped=clipped,
            adapt=adapt,
        )

    def _step_parameter(self, param: nn.Parameter, group: ParamGroup) -> None:
        state, _ = self._started(param, group)
        rate, decay = float(group["lr"]), group["weight_decay"]
        grad = self.gradient_of(param)
        if group["adapt"] and grad is not None:
            weights = self._norm(self.master_of(param), param)
            gradient = self._norm(grad.to(torch.float64), param)
            if weights and gradient:
                local = group["trust"] * weights / (gradient + decay * weights)
                rate = min(local, rate) if group.get("clipped") else rate * local
        for part in stretches(param, state, self.moments_of(group)):
            move = part.grad.add(part.master, alpha=decay).mul_(rate)
            for buffer in part.moments:
                move = buffer.mul_(group["momentum"]).add_(move)
            part.master.sub_(move)
