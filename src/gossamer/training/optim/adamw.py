# SPDX-License-Identifier: Apache-2.0
"""AdamW: Adam with decoupled weight decay, operation for operation that of torch."""

from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.dense_home import DenseHome
from gossamer.ops.training.adamw import adamw_step, runs_native
from gossamer.training.optim.base import Master, Moments, SmallStateOptimizer
from gossamer.training.optim.dither import native_dither
from gossamer.training.optim.moments import Moment
from gossamer.training.optim.pieces import numbers_of
from gossamer.training.optim.state_checks import LOW, refuse_number

MEAN = Moment("exp_avg", signed=True)
SQUARE = Moment("exp_avg_sq", signed=False)


class AdamW(SmallStateOptimizer):
    """AdamW whose fp32 results equal `torch.optim.AdamW(foreach=False)` bit by bit.

    Args:
        params: Parameters or groups, see `SmallStateOptimizer`.
        lr: learning rate.
        betas: decay of the running mean of gradients and of their squares.
        eps: added to the root of the second moment.
        weight_decay: decoupled: weights shrink by lr * weight_decay per step.
        master: "split", "split8" or "fp32", for bfloat16 parameters.
        moments: "fp32" or "8bit".
        fused: one pass over memory in native code instead of torch's operations one after the
            other: some ten times as fast. Results are the same on every instruction set and for
            compact and dense parameters; against torch they differ in the last bit, because its
            square roots are not always rounded to nearest, and now and then by one 8-bit code where
            its logarithm rounds otherwise. Needs a CPU and no separate fp32 master; parameters that
            are not contiguous take the other way.
    """

    MOMENTS = (MEAN, SQUARE)

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
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "fused": fused,
        }
        super().__init__(params, defaults, master, moments)

    def _check_group(self, group: dict[str, Any]) -> None:
        check_adam_settings(type(self).__name__, group)
        if group["fused"] and group["master"] == "fp32":
            raise InputError('AdamW: fused needs master="split" or "split8"; got master="fp32".')
        super()._check_group(group)

    def _step_parameter(self, param: nn.Parameter, group: dict[str, Any]) -> None:
        state, step = self._started(param, group)
        if group["fused"] and self._stepped_natively(param, group, state, step):
            return
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        step_size = lr / (1 - beta1**step)
        root_correction = (1 - beta2**step) ** 0.5
        for piece in self._pieces(param, state):
            mean = MEAN.read(state, piece.start, piece.stop)
            square = SQUARE.read(state, piece.start, piece.stop)
            piece.master.mul_(1 - lr * group["weight_decay"])
            mean.lerp_(piece.grad, 1 - beta1)
            square.mul_(beta2).addcmul_(piece.grad, piece.grad, value=1 - beta2)
            denominator = (square.sqrt() / root_correction).add_(group["eps"])
            piece.master.addcdiv_(mean, denominator, value=-step_size)
            MEAN.write(state, piece.start, mean, piece.offset)
            SQUARE.write(state, piece.start, square, piece.offset)

    def _stepped_natively(
        self, param: nn.Parameter, group: dict[str, Any], state: dict[str, Any], step: int
    ) -> bool:
        """One pass of native code, if the tensors allow it."""
        home, weight, grad = DenseHome.of(param), numbers_of(param), param.grad
        known = param.dtype is torch.float32 or LOW in state
        if not known or grad is None or grad.dtype is not param.dtype:
            return False
        low, mean, square = state.get(LOW), MEAN.arrays(state), SQUARE.arrays(state)
        if not runs_native(weight, grad, low, *mean, *square):
            return False
        settings = (float(group["lr"]), *group["betas"], group["eps"], group["weight_decay"])
        dither = native_dither(param.numel(), step) if self._needs_dither(state) else None
        adamw_step(weight, low, grad, mean, square, settings, step, dither)
        if home is not None:
            home.write(weight)
        else:
            # Autograd must know that a weight it may have saved was changed.
            torch.autograd.graph.increment_version(param)
        return True


def check_adam_settings(name: str, group: dict[str, Any]) -> None:
    """Raise InputError for rates and decays out of range."""
    refuse_number(name, "lr", group["lr"], 0.0)
    refuse_number(name, "eps", group["eps"], 0.0)
    refuse_number(name, "weight_decay", group["weight_decay"], 0.0)
    for index, beta in enumerate(group["betas"]):
        refuse_number(name, f"betas[{index}]", beta, 0.0, 1.0)
