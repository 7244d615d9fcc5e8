# SPDX-License-Identifier: Apache-2.0
"""SGD with momentum and Nesterov's variant; weight decay is decoupled."""

from typing import Any

from torch import nn

from gossamer.errors import InputError
from gossamer.training.optim.base import Master, Moments, SmallStateOptimizer
from gossamer.training.optim.moments import Moment
from gossamer.training.optim.state_checks import refuse_number

BUFFER = Moment("momentum_buffer", signed=True)


class SGD(SmallStateOptimizer):
    """SGD whose fp32 results without weight decay equal `torch.optim.SGD(foreach=False)`.

    Args:
        params: Parameters or groups, see `SmallStateOptimizer`.
        lr: learning rate.
        momentum: decay of the running sum of gradients; 0 keeps none.
        nesterov: look one step ahead; needs momentum.
        weight_decay: decoupled, unlike torch's: weights shrink by lr * weight_decay per step, and
            the momentum does not see it.
        master: "split", "split8" or "fp32", for bfloat16 parameters.
        moments: "fp32" or "8bit".
    """

    MOMENTS = (BUFFER,)

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
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults, master, moments)

    def _check_group(self, group: dict[str, Any]) -> None:
        name = type(self).__name__
        refuse_number(name, "lr", group["lr"], 0.0)
        refuse_number(name, "momentum", group["momentum"], 0.0, 1.0)
        refuse_number(name, "weight_decay", group["weight_decay"], 0.0)
        if group["nesterov"] and not group["momentum"]:
            raise InputError(f"{name}: nesterov needs momentum greater than 0.")
        super()._check_group(group)

    def moments_of(self, group: dict[str, Any]) -> tuple[Moment, ...]:
        """The running averages that a group keeps."""
        return self.MOMENTS if group["momentum"] else ()

    def _step_parameter(self, param: nn.Parameter, group: dict[str, Any]) -> None:
        state, step = self._started(param, group)
        lr, momentum = float(group["lr"]), group["momentum"]
        for piece in self._pieces(param, state):
            direction = piece.grad
            if momentum:
                buffer = BUFFER.read(state, piece.start, piece.stop)
                # torch starts with the gradient itself: 0 * momentum + gradient is the same bits,
                # but for the sign of zeros.
                buffer = (
                    buffer.copy_(piece.grad)
                    if step == 1
                    else buffer.mul_(momentum).add_(piece.grad)
                )
                direction = piece.grad.add(buffer, alpha=momentum) if group["nesterov"] else buffer
                BUFFER.write(state, piece.start, buffer, piece.offset)
            if group["weight_decay"]:
                piece.master.mul_(1 - lr * group["weight_decay"])
            piece.master.add_(direction, alpha=-lr)
