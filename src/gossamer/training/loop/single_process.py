# SPDX-License-Identifier: Apache-2.0
"""How a loop uses one process; `training/distributed/placement/grid.py` is the same for many."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.training.loop.finite import describe, gradient_norm, not_finite_gradients
from gossamer.training.loop.run_context import Objective
from gossamer.training.memory.held import measure

if TYPE_CHECKING:
    from gossamer.training.loop.loop import Loop


@dataclass(frozen=True)
class Agreement:
    """What all processes of a run know after the gradients of a step.

    Attributes:
        loss: mean over the batch.
        norm: of all gradients together.
        numbers: what the objective measured beside the loss.
    """

    loss: float
    norm: float
    numbers: Mapping[str, float]


class Processes(Protocol):
    """Who carries out the steps of a loop."""

    @property
    def is_lead(self) -> bool:
        """Whether this process writes files."""

    def arrange(self, loop: "Loop") -> None:
        """Make ready for steps; again whenever layers changed their form."""

    def dissolve(self, loop: "Loop") -> None:
        """The model is whole again, at least in the leading process."""

    def backward(
        self, loop: "Loop", batch: Any, *, is_last: bool
    ) -> tuple[float, dict[str, float]]:
        """Add the gradients of one batch; loss and numbers as far as this process knows them."""

    def agree(
        self, loop: "Loop", loss: float, numbers: Mapping[str, float], signal: int
    ) -> Agreement:
        """The same on all processes; `signal` has come to this one, 0 if none has."""

    def asked_to_stop(self, signal: int) -> int:
        """The signal after which all processes stop at this step; 0 to go on."""

    def changed(self, loop: "Loop") -> None:
        """Masks moved."""

    def not_finite(self, loop: "Loop") -> list[str]:
        """Parameters whose gradient has NaN or Inf in any process; see `finite.describe`."""

    def sparsity(self, loop: "Loop") -> float:
        """Of the whole model: fraction of zeros over the layers of the schedule."""

    def state_bytes(self, loop: "Loop") -> int:
        """Of the whole model, each number once: weights, gradients, moments, masks, buffers."""

    def evaluated(self, loop: "Loop", measure: Callable[[nn.Module], Any]) -> Any:
        """What `measure` finds of the model."""

    def states(self, loop: "Loop") -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | None:
        """Of the whole model, the whole optimizer, the schedule; None where not leading."""

    def saved(self) -> None:
        """A checkpoint was written, or is being written."""

    def traffic(self) -> dict[str, int]:
        """Bytes that this process sends in a step, by purpose."""


class Alone:
    """One process."""

    is_lead = True

    def arrange(self, loop: "Loop") -> None:
        """Nothing to do."""

    def dissolve(self, loop: "Loop") -> None:
        """Nothing to do."""

    def backward(
        self, loop: "Loop", batch: Any, *, is_last: bool
    ) -> tuple[float, dict[str, float]]:
        """Forward and backward of one batch."""
        return backward_once(loop.objective, loop.model, batch, loop)

    def agree(
        self, loop: "Loop", loss: float, numbers: Mapping[str, float], signal: int
    ) -> Agreement:
        """What this process knows."""
        parameters = (p for group in loop.optimizer.param_groups for p in group["params"])
        return Agreement(loss, gradient_norm(parameters), numbers)

    def asked_to_stop(self, signal: int) -> int:
        """The signal itself."""
        return signal

    def changed(self, loop: "Loop") -> None:
        """Nobody to compare with."""

    def not_finite(self, loop: "Loop") -> list[str]:
        """Of the model."""
        found = not_finite_gradients(loop.model.named_parameters())
        return [describe(name, *counts) for name, counts in found.items()]

    def sparsity(self, loop: "Loop") -> float:
        """As the schedule counts it."""
        return loop.control.sparsity()

    def state_bytes(self, loop: "Loop") -> int:
        """As measured."""
        return measure(loop.model, loop.optimizer).total_bytes

    def evaluated(self, loop: "Loop", measure: Callable[[nn.Module], Any]) -> Any:
        """What `measure` finds."""
        return measure(loop.model)

    def states(self, loop: "Loop") -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """As they are."""
        state = loop.optimizer.state_dict()
        return dict(loop.model.state_dict()), state, loop.control.state_dict()

    def saved(self) -> None:
        """Nobody waits."""

    def traffic(self) -> dict[str, int]:
        """None."""
        return {}


def backward_once(
    objective: Objective, model: nn.Module, batch: Any, loop: "Loop"
) -> tuple[float, dict[str, float]]:
    """Gradients of one batch, as a part of the batches of a step."""
    count = loop.settings.accumulate
    loss, found = loss_of(objective, model, batch, bf16=loop.settings.precision == "bf16")
    torch.autograd.backward(loss.float() / count if loss.dtype.itemsize < 4 else loss / count)
    return float(loss.detach()) / count, {name: float(v) / count for name, v in found.items()}


def loss_of(
    objective: Objective, model: nn.Module, batch: Any, *, bf16: bool
) -> tuple[torch.Tensor, Mapping[str, float]]:
    """The loss as one number, and the objective's numbers."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        result = objective(model, batch)
    loss, found = result if isinstance(result, tuple) else (result, {})
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        got = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InputError(f"objective: must return one number as a tensor, got {got}.")
    return loss, found
