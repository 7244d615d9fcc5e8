# SPDX-License-Identifier: Apache-2.0
"""SGD and AdamW for gradients of which only some blocks arrive: momentum-safe partners of TASC.

A stock optimizer takes the zeros of blocks that were not sent for gradients. Momentum then decays
and moves weights on nothing, Adam's second moment shrinks, and when the sum of twenty steps arrives
it is divided by the root of almost nothing. Here only blocks that were sent are touched, state
included, and time has passed for them as often as gradients were added up. That also makes the
optimizer's own work proportional to what was sent.

With all blocks sent in every step results are those of torch's optimizers (weight decay decoupled).

Legend: A blocks that were sent, N elements of a block; G their summed gradient, a the steps in it.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.training.distributed.tasc.exchange import Tasc
from gossamer.training.optim import ParamGroup, StepsEachParameter


class RowOptimizer(StepsEachParameter):
    """Base of RowSGD and RowAdamW.

    Args:
        params: Parameters or groups of them.
        tasc: what knows which blocks were sent.
        settings: of the algorithm.
    """

    STATE: ClassVar[tuple[str, ...]] = ()

    def __init__(self, params: Any, tasc: Tasc, **settings: Any) -> None:
        if settings["lr"] < 0 or settings["weight_decay"] < 0:
            raise InputError(f"{type(self).__name__}: lr and weight_decay must not be negative.")
        super().__init__(params, settings)
        self._tasc = tasc

    def _step_parameter(self, param: nn.Parameter, group: ParamGroup) -> None:
        state = self.state[param]
        if not state:
            state["step"] = torch.zeros(())
            for key in self.STATE:
                state[key] = torch.zeros_like(param)
        state["step"] += 1
        number = int(state["step"])
        assert param.grad is not None  # noqa: S101  (step() asks this first)
        tensors = [param.detach(), param.grad, *(state[key] for key in self.STATE)]
        sent = self._tasc.sent(param)
        if sent is None:
            self._update(tensors, None, group, number)
            return
        cut, rows_A, waited_A = sent
        if not all(tensor.is_contiguous() for tensor in tensors):
            raise InputError(
                f"row optimizer: a parameter of {list(param.shape)} or its state is not contiguous."
                " Keep convolutions in the default memory format."
            )
        flat = [tensor.view(-1) for tensor in tensors]
        if cut.tail:
            self._update([f[cut.blocked :] for f in flat], None, group, number)
        whole_RN = [cut.in_blocks(f) for f in flat]
        sent_AN = [tensor.index_select(0, rows_A) for tensor in whole_RN]
        self._update(sent_AN, waited_A.to(param.dtype).view(-1, 1), group, number)
        for index, (tensor, new) in enumerate(zip(whole_RN, sent_AN, strict=True)):
            if index != 1:  # the gradient is not changed
                tensor.index_copy_(0, rows_A, new)

    @abstractmethod
    def _update(
        self,
        tensors: list[torch.Tensor],
        waited: torch.Tensor | None,
        group: ParamGroup,
        number: int,
    ) -> None:
        """Update the weight and state in `tensors` (weight, gradient, then STATE) in place.

        Args:
            tensors: of the blocks that were sent.
            waited: steps whose gradients were added up [A, 1]; None for one step each.
            group: settings.
            number: of this step, from 1.
        """


class RowSGD(RowOptimizer):
    """SGD: m = momentum m + G; w -= lr m, for blocks that were sent.

    Momentum advances once per sending: all of G takes effect as with dense gradients, G / (1 -
    momentum), over the next sendings. (Advancing it by all the steps in G at once was tried and
    ended lower.)

    Args:
        params: Parameters or groups of them.
        tasc: what knows which blocks were sent.
        lr: learning rate.
        momentum: decay of the running sum.
        weight_decay: decoupled: weights shrink by lr * weight_decay for each step that passed.
    """

    STATE = ("momentum_buffer",)

    def __init__(
        self,
        params: Any,
        tasc: Tasc,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        if not 0 <= momentum < 1:
            raise InputError(f"RowSGD: momentum must be in [0, 1), got {momentum}.")
        super().__init__(params, tasc, lr=lr, momentum=momentum, weight_decay=weight_decay)

    def _update(
        self,
        tensors: list[torch.Tensor],
        waited: torch.Tensor | None,
        group: ParamGroup,
        number: int,
    ) -> None:
        weight, gradient, buffer = tensors
        _decay(weight, waited, group)
        buffer.mul_(group["momentum"]).add_(gradient)
        weight.add_(buffer, alpha=-float(group["lr"]))


class RowAdamW(RowOptimizer):
    """AdamW that lives through the steps which a block had waited, with their mean gradient.

    With g = G / a: m' = b1^a m + (1 - b1^a) g, and the weight moves by the sum of the a means that
    lie between m and m'. The mean of a noisy gradients has a times less variance, so a g^2 stands
    for their squares: v' = b2^a v + (1 - b2^a) a g^2. Steps are as long as dense ones for any a.

    Args:
        params: Parameters or groups of them.
        tasc: what knows which blocks were sent.
        lr: learning rate.
        betas: decay of the running mean of gradients and of their squares.
        eps: added to the root of the second moment.
        weight_decay: decoupled: weights shrink by lr * weight_decay for each step that passed.
    """

    STATE = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any,
        tasc: Tasc,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise InputError(f"RowAdamW: betas must be in [0, 1), got {betas}.")
        super().__init__(params, tasc, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _update(
        self,
        tensors: list[torch.Tensor],
        waited: torch.Tensor | None,
        group: ParamGroup,
        number: int,
    ) -> None:
        weight, gradient, mean, square = tensors
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        _decay(weight, waited, group)
        if waited is None:
            mean.lerp_(gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            moved = mean
        else:
            kept1, kept2, average = beta1**waited, beta2**waited, gradient / waited
            # The sum of b1^j over the steps 1..a: what is left of the old mean in all of them.
            echo = beta1 * (1 - kept1) / (1 - beta1)
            moved = mean * echo + average * (waited - echo)
            mean.mul_(kept1).add_(average * (1 - kept1))
            square.mul_(kept2).add_(average.square_().mul_(waited * (1 - kept2)))
        root = (square / (1 - beta2**number)).sqrt_().add_(group["eps"])
        weight.addcdiv_(moved, root, value=-lr / (1 - beta1**number))


def _decay(weight: torch.Tensor, waited: torch.Tensor | None, group: ParamGroup) -> None:
    strength = float(group["lr"]) * group["weight_decay"]
    if strength:
        weight.mul_(1 - strength if waited is None else (1 - strength) ** waited)
