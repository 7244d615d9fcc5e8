# SPDX-License-Identifier: Apache-2.0
"""AdamW: Adam with decoupled weight decay, operation for operation that of torch."""

from typing import Any

from torch import nn

from gossamer.train.optim.base import Master, Moments, SmallStateOptimizer
from gossamer.train.optim.moments import Moment
from gossamer.train.optim.state_checks import refuse_number

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
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, master, moments)

    def _check_group(self, group: dict[str, Any]) -> None:
        check_adam_settings(type(self).__name__, group)
        super()._check_group(group)

    def _step_parameter(self, param: nn.Parameter, group: dict[str, Any]) -> None:
        state, step = self._started(param, group)
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


def check_adam_settings(name: str, group: dict[str, Any]) -> None:
    """Raise InputError for rates and decays out of range."""
    refuse_number(name, "lr", group["lr"], 0.0)
    refuse_number(name, "eps", group["eps"], 0.0)
    refuse_number(name, "weight_decay", group["weight_decay"], 0.0)
    for index, beta in enumerate(group["betas"]):
        refuse_number(name, f"betas[{index}]", beta, 0.0, 1.0)
