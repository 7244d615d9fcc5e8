# SPDX-License-Identifier: Apache-2.0
"""Optimizers with two moments: AdamW, and LAMB (arXiv 1904.00962).

AdamW is Adam with decoupled weight decay, operation for operation that of torch. LAMB rescales
Adam's direction per layer to the size of its weights.
"""

import math
from math import inf
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.parts import DenseHome
from gossamer.ops.addresses import runs_native
from gossamer.ops.training.optimizer_passes import adamw_step
from gossamer.training.optim.base import Master, Moments, ParamGroup, SmallStateOptimizer
from gossamer.training.optim.codes import StoredMoment
from gossamer.training.optim.pieces import (
    LOW,
    Stretch,
    native_dither,
    needs_dither,
    numbers_of,
    stretches,
)

MEAN = StoredMoment("exp_avg", signed=True)
SQUARE = StoredMoment("exp_avg_sq", signed=False)
_RANGES = {"lr": inf, "eps": inf, "weight_decay": inf, "betas": 1.0}


class AdamW(SmallStateOptimizer):
    """AdamW whose fp32 results equal `torch.optim.AdamW(foreach=False)` bit by bit.

    Args:
        params: Parameters or groups, see `SmallStateOptimizer`.
        lr: learning rate.
        betas: decay of the running mean of gradients and of their squares.
        eps: added to the root of the second moment.
        weight_decay: decoupled: weights shrink by lr * weight_decay per step.
        master: "split", "split8", "fp32" or "wide", for 16-bit parameters.
        moments: "fp32" or "8bit".
        fused: one pass over memory in native code instead of torch's operations one after the
            other: some ten times as fast. Results are the same on every instruction set and for
            compact and dense parameters; against torch they differ in the last bit, because its
            square roots are not always rounded to nearest, and now and then by one 8-bit code where
            its logarithm rounds otherwise. Needs a CPU and no separate fp32 master; parameters that
            are not contiguous take the other way.
    """

    MOMENTS = (MEAN, SQUARE)
    RANGES = _RANGES

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        master: Master = "split",
        moments: Moments = "fp32",
        fused: bool = False,
    ) -> None:
        super().__init__(
            params,
            master,
            moments,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            fused=fused,
        )

    def _check_group(self, group: ParamGroup) -> None:
        super()._check_group(group)
        if group["fused"] and group["master"] in ("fp32", "wide"):
            raise InputError(
                f'AdamW: fused needs master="split" or "split8"; got master={group["master"]!r}.'
            )

    def _step_parameter(self, param: nn.Parameter, group: ParamGroup) -> None:
        state, step = self._started(param, group)
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        if group["fused"]:
            weight, grad, low = numbers_of(param), param.grad, state.get(LOW)
            held = MEAN.arrays(state), SQUARE.arrays(state)
            known = param.dtype is torch.float32 or low is not None
            # One pass of native code, if the tensors allow it.
            if (
                known
                and grad is not None
                and grad.dtype is param.dtype
                and runs_native(weight, grad, low, *held[0], *held[1])
            ):
                settings = (lr, *group["betas"], group["eps"], group["weight_decay"])
                dither = native_dither(param.numel(), step) if needs_dither(state) else None
                adamw_step(weight, low, grad, *held, settings, step, dither)
                home = DenseHome.of(param)
                if home is not None:
                    home.write(weight)
                else:
                    # Autograd must know that a weight it may have saved was changed.
                    torch.autograd.graph.increment_version(param)
                return
        step_size = lr / (1 - beta1**step)
        root_correction = (1 - beta2**step) ** 0.5
        for part in stretches(param, state, self.MOMENTS):
            part.master.mul_(1 - lr * group["weight_decay"])
            mean, square = _updated(part, beta1, beta2)
            denominator = (square.sqrt() / root_correction).add_(group["eps"])
            part.master.addcdiv_(mean, denominator, value=-step_size)


def _updated(part: Stretch, beta1: float, beta2: float) -> list[torch.Tensor]:
    """Mean and square after the gradient of a step."""
    mean, square = part.moments
    mean.lerp_(part.grad, 1 - beta1)
    square.mul_(beta2).addcmul_(part.grad, part.grad, value=1 - beta2)
    return part.moments


class LAMB(SmallStateOptimizer):
    """LAMB as published, with the variants that other implementations have.

    r = m / (sqrt(v) + eps) + weight_decay w;  w -= lr |w| / |r| r. The ratio is 1 where either norm
    is 0. A parameter is a layer: norms of compact values are those of the kept weights. The
    direction of one parameter at a time is held in float32.

    Args:
        params: Parameters or groups, see `SmallStateOptimizer`.
        lr: learning rate.
        betas: decay of the running mean of gradients and of their squares.
        eps: added to the root of the second moment.
        weight_decay: weight of w in the direction.
        max_ratio: largest |w| / |r|; None for no bound, 1 is what others call trust clip.
        max_size: largest |w| that counts, the bound of the paper's phi; None for no bound.
        corrected: divide both moments by 1 - beta^step; some implementations do not.
        normalised: divide all gradients by their common norm first, as NVLAMB does. The norm is
            that of the parameters this optimizer holds, so all of a model must be in it.
        adapt: False takes 1 for the ratio: for groups of biases and norms. Compact values have one
            dimension as well, so the number of dimensions cannot decide it.
        master: "split", "split8", "fp32" or "wide", for 16-bit parameters.
        moments: "fp32" or "8bit".
    """

    MOMENTS = (MEAN, SQUARE)
    RANGES = _RANGES

    def __init__(  # noqa: PLR0913
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        max_ratio: float | None = None,
        max_size: float | None = None,
        corrected: bool = True,
        normalised: bool = False,
        adapt: bool = True,
        master: Master = "split",
        moments: Moments = "fp32",
    ) -> None:
        self.normalised = normalised
        self._scale = 1.0
        super().__init__(
            params,
            master,
            moments,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            max_ratio=max_ratio,
            max_size=max_size,
            corrected=corrected,
            adapt=adapt,
        )

    def _check_group(self, group: ParamGroup) -> None:
        super()._check_group(group)
        for name in ("max_ratio", "max_size"):
            if group[name] is not None:
                self._check_number(name, group[name])

    def _before_step(self) -> None:
        super()._before_step()
        if self.normalised:
            held = [param for group in self.param_groups for param in group["params"]]
            grads = [(self.gradient_of(param), param) for param in held]
            norms = [self._norm(g.double(), param) for g, param in grads if g is not None]
            whole = math.hypot(*norms)
            self._scale = 1.0 / whole if whole > 0 else 1.0

    def _step_parameter(self, param: nn.Parameter, group: ParamGroup) -> None:
        state, step = self._started(param, group)
        (beta1, beta2), decay = group["betas"], group["weight_decay"]
        left1, left2 = (
            (1 - beta1**step, 1 - beta2**step) if group.get("corrected", True) else (1.0, 1.0)
        )
        wide = torch.promote_types(param.dtype, torch.float32)
        direction = torch.empty(param.numel(), dtype=wide, device=param.device)
        for part in stretches(param, state, self.MOMENTS):
            if self.normalised:
                part.grad = part.grad * self._scale
            mean, square = _updated(part, beta1, beta2)
            denominator = (square / left2).sqrt_().add_(group["eps"])
            move = direction[part.start : part.stop]
            torch.div(mean / left1, denominator, out=move)
            move.add_(part.master, alpha=decay)
        ratio = 1.0
        if group["adapt"]:
            size = self._norm(self.master_of(param), param)
            size = min(size, inf if group.get("max_size") is None else group["max_size"])
            length = self._norm(direction, param)
            # A norm of 0 says nothing about scale.
            ratio = size / length if size > 0 and length > 0 else 1.0
            ratio = ratio if group["max_ratio"] is None else min(ratio, group["max_ratio"])
        for part in stretches(param, state):
            move = direction[part.start : part.stop]
            part.master.add_(move, alpha=-float(group["lr"]) * ratio)
