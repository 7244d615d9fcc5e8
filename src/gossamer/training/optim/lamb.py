# SPDX-License-Identifier: Apache-2.0
"""LAMB: Adam's direction, rescaled per layer to the size of its weights (arXiv 1904.00962)."""

from typing import Any

import torch
from torch import nn

from gossamer.training.optim.adamw import MEAN, SQUARE, check_adam_settings
from gossamer.training.optim.base import Master, Moments, SmallStateOptimizer
from gossamer.training.optim.norms import kept_norm
from gossamer.training.optim.state_checks import refuse_number


class LAMB(SmallStateOptimizer):
    """LAMB with bias correction.

    r = m / (sqrt(v) + eps) + weight_decay w;  w -= lr |w| / |r| r. The ratio is 1 where either norm
    is 0. A parameter is a layer: norms of compact values are those of the kept weights. The
    direction of one parameter at a time is held in float32.

    Args:
        params: Parameters or groups, see `SmallStateOptimizer`.
        lr: learning rate.
        betas: decay of the running mean of gradients and of their squares.
        eps: added to the root of the second moment.
        weight_decay: weight of w in the direction.
        max_ratio: largest |w| / |r|; None for no bound.
        adapt: False takes 1 for the ratio: for groups of biases and norms. Compact values have one
            dimension as well, so the number of dimensions cannot decide it.
        master: "split", "split8" or "fp32", for bfloat16 parameters.
        moments: "fp32" or "8bit".
    """

    MOMENTS = (MEAN, SQUARE)

    def __init__(  # noqa: PLR0913
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        max_ratio: float | None = None,
        adapt: bool = True,
        master: Master = "split",
        moments: Moments = "fp32",
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_ratio": max_ratio,
            "adapt": adapt,
        }
        super().__init__(params, defaults, master, moments)

    def _check_group(self, group: dict[str, Any]) -> None:
        name = type(self).__name__
        check_adam_settings(name, group)
        if group["max_ratio"] is not None:
            refuse_number(name, "max_ratio", group["max_ratio"], 0.0)
        super()._check_group(group)

    def _step_parameter(self, param: nn.Parameter, group: dict[str, Any]) -> None:
        state, step = self._started(param, group)
        (beta1, beta2), decay = group["betas"], group["weight_decay"]
        wide = torch.float64 if param.dtype is torch.float64 else torch.float32
        direction = torch.empty(param.numel(), dtype=wide, device=param.device)
        weights = torch.empty_like(direction) if group["adapt"] else None
        for piece in self._pieces(param, state):
            mean = MEAN.read(state, piece.start, piece.stop)
            square = SQUARE.read(state, piece.start, piece.stop)
            mean.lerp_(piece.grad, 1 - beta1)
            square.mul_(beta2).addcmul_(piece.grad, piece.grad, value=1 - beta2)
            denominator = (square / (1 - beta2**step)).sqrt_().add_(group["eps"])
            part = direction[piece.start : piece.stop]
            torch.div(mean / (1 - beta1**step), denominator, out=part)
            part.add_(piece.master, alpha=decay)
            if weights is not None:
                weights[piece.start : piece.stop] = piece.master
            MEAN.write(state, piece.start, mean, piece.offset)
            SQUARE.write(state, piece.start, square, piece.offset)
        ratio = 1.0
        if weights is not None:
            kept = self._kept(param)
            ratio = trust_ratio(kept_norm(weights, kept), kept_norm(direction, kept))
            ratio = ratio if group["max_ratio"] is None else min(ratio, group["max_ratio"])
        for piece in self._pieces(param, state):
            part = direction[piece.start : piece.stop]
            piece.master.add_(part, alpha=-float(group["lr"]) * ratio)


def trust_ratio(weights: float, direction: float) -> float:
    """|w| / |r|; 1 where one of them is 0 and says nothing about scale."""
    return weights / direction if weights > 0 and direction > 0 else 1.0
