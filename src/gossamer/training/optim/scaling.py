# SPDX-License-Identifier: Apache-2.0
"""Loss scaling for float16, of Parameters in float16 as well.

Small gradients are 0 in float16. So the loss is multiplied by a scale before the backward pass, and
gradients are divided by it afterwards, in float32. A step whose gradients overflowed is skipped and
the scale halved; after many steps that did not, it is doubled. `torch.amp.GradScaler` does the same
and refuses float16 Parameters, because it would divide in 16 bits: here the optimizer raises their
gradients into float32 ones first (master "wide").
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError, GossamerError, InputError
from gossamer.training.optim.base import SmallStateOptimizer
from gossamer.training.optim.gradients import gradient_numbers, step_gradient

__all__ = ["LossScaleUnderflow", "LossScaler"]

# The smallest number of float16: under a smaller scale the gradient 1 of a loss is 0.
_LEAST = 2.0**-24


class LossScaleUnderflow(GossamerError, RuntimeError):
    """Gradients overflow float16 at every scale at which they are not all 0."""

    exit_code = 4


class LossScaler:
    """Scales a loss, takes the scale off gradients, and follows overflows.

    Args:
        start: the first scale.
        growth: factor after `interval` steps without overflow.
        backoff: factor after an overflow.
        interval: steps in a row without overflow before the scale grows; those of
            `torch.amp.GradScaler` are the defaults.
        most: largest scale.
    """

    def __init__(
        self,
        start: float = 2.0**16,
        *,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
        most: float = 2.0**24,
    ) -> None:
        if not _LEAST <= start <= most or not math.isfinite(most):
            raise InputError(
                f"LossScaler: start must be between 2^-24 and most = {most}, got {start}."
            )
        if not growth >= 1 or not 0 < backoff < 1 or interval < 1:
            raise InputError(
                "LossScaler: expected growth >= 1, 0 < backoff < 1 and interval >= 1, got"
                f" {growth}, {backoff} and {interval}."
            )
        self.factor = float(start)
        self._growth, self._backoff, self._interval = growth, backoff, interval
        self._most = most
        self._good_steps = 0
        self._in_a_row = 0

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call backward on; in float32, because the scale may exceed float16."""
        wide = loss.float() if loss.dtype.itemsize < torch.float32.itemsize else loss
        return wide * self.factor

    @torch.no_grad()
    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide all gradients by the scale, once per step, before they are looked at or clipped.

        Gradients of float16 and bfloat16 Parameters with master "wide" become float32 ones,
        `optimizer.gradient_of`.
        """
        inverse = 1.0 / self.factor
        for group in optimizer.param_groups:
            for param in group["params"]:
                self._check(param, group)
        if isinstance(optimizer, SmallStateOptimizer):
            optimizer.raise_gradients(inverse)
        for group in optimizer.param_groups:
            for param in group["params"]:
                found = gradient_numbers(param)
                # What was raised has its scale off.
                if found is not None and step_gradient(optimizer, param) is found:
                    found.mul_(inverse)

    def _check(self, param: nn.Parameter, group: Mapping[str, Any]) -> None:
        """Raise InputError for a gradient that would be divided in 16 bits."""
        if param.dtype is torch.float16 and group.get("master") != "wide":
            raise InputError(
                f"LossScaler: a parameter of {list(param.shape)} is float16 and its optimizer has"
                ' no float32 gradient to unscale. Use master="wide" of gossamer.training.optim, or'
                " float32 parameters under autocast."
            )

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Unscale, step unless a gradient overflowed, and follow; whether a step was taken."""
        self.unscale(optimizer)
        params = [param for group in optimizer.param_groups for param in group["params"]]
        found = [step_gradient(optimizer, param) for param in params]
        is_finite = all(bool(grad.isfinite().all()) for grad in found if grad is not None)
        if is_finite:
            optimizer.step()
        else:
            # What was raised belongs to this step.
            optimizer.zero_grad()
        self.follow(is_finite)
        return is_finite

    def follow(self, is_finite: bool) -> None:
        """Set the scale of the next step.

        Raises:
            LossScaleUnderflow: gradients overflow whatever the scale is.
        """
        if is_finite:
            self._in_a_row = 0
            self._good_steps += 1
            if self._good_steps == self._interval:
                self.factor = min(self.factor * self._growth, self._most)
                self._good_steps = 0
            return
        self._good_steps = 0
        self._in_a_row += 1
        if self.factor * self._backoff < _LEAST:
            raise LossScaleUnderflow(
                f"loss scale: gradients overflowed {self._in_a_row} times in a row, down to a scale"
                f" of {self.factor:.3g}, below which they are 0 in float16. Lower the learning rate"
                " or clip gradients, check the data, or train in bf16 or fp32."
            )
        self.factor *= self._backoff

    def state_dict(self) -> dict[str, Any]:
        """What decides the scales to come."""
        return {"scale": self.factor, "good_steps": self._good_steps, "in_a_row": self._in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        scale: Any = state.get("scale")
        counts: list[Any] = [state.get(name) for name in ("good_steps", "in_a_row")]
        is_scale = isinstance(scale, float) and _LEAST <= scale <= self._most
        if not is_scale or not all(type(count) is int and count >= 0 for count in counts):
            raise ArtifactError(
                f"loss scale: expected a scale from 2^-24 to {self._most} and two counts, found"
                f" {dict(state)}."
            )
        self.factor = scale
        self._good_steps, self._in_a_row = counts
