# SPDX-License-Identifier: Apache-2.0
"""Who carries out the steps of a loop: `Processes`, here one, elsewhere a mesh of them.

`loss_of` is the loss of a batch, with gradients recomputed if asked (`recomputing`);
`not_finite_gradients` names bad ones. `Agreement`, `Evaluate`, `LossAndNumbers` and `States` are
what a mesh must take and give as well.

`training/distributed/placement/mesh.py` is the same for many. Recomputing is activation
checkpointing for any model: blocks keep their input and run again in backward.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gossamer.errors import InputError
from gossamer.training.loop.run import Evaluate, Objective, TrainingRun
from gossamer.training.loop.settings import LOW_PRECISIONS
from gossamer.training.memory import measure
from gossamer.training.optim.gradients import gradient_numbers

__all__ = [
    "Agreement",
    "Evaluate",
    "LossAndNumbers",
    "Processes",
    "States",
    "loss_of",
    "not_finite_gradients",
    "recomputing",
]

States = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
# The loss of a batch, and the numbers of its objective.
LossAndNumbers = tuple[float, dict[str, float]]


class Agreement(NamedTuple):
    """What all processes of a run know after the gradients of a step.

    Attributes:
        loss: mean over the batch.
        norm: of all gradients together.
        numbers: what the objective measured beside the loss.
    """

    loss: float
    norm: float
    numbers: Mapping[str, float]


class Processes:
    """Who carries out the steps of a run: this process alone. The loop sets `run`."""

    run: TrainingRun
    # Whether this process writes files.
    is_lead = True

    def arrange(self) -> None:
        """Make ready for steps; again whenever layers changed their form."""

    def dissolve(self) -> None:
        """Make the model whole again, at least in the leading process."""

    def backward(self, batch: Any, *, is_last: bool) -> LossAndNumbers:
        """Add the gradients of one batch; loss and numbers as far as this process knows them."""
        return self._backward_once(self.run.model, batch)

    def _backward_once(self, model: nn.Module, batch: Any) -> LossAndNumbers:
        """Gradients of one batch, as a part of the batches of a step."""
        settings, scaler = self.run.settings, self.run.scaler
        count, low = settings.accumulate, LOW_PRECISIONS.get(settings.precision)
        loss, found = loss_of(self.run.objective, model, batch, low=low)
        mean = loss.float() / count if loss.dtype.itemsize < 4 else loss / count
        torch.autograd.backward(mean if scaler is None else scaler.scale(mean))
        return float(loss.detach()) / count, {name: float(v) / count for name, v in found.items()}

    def agree(self, loss: float, numbers: Mapping[str, float], signal: int) -> Agreement:
        """The same on all processes; `signal` has come to this one, 0 if none has."""
        return Agreement(loss, float(nn.utils.get_total_norm(self.run.gradients)), numbers)

    def asked_to_stop(self, signal: int) -> int:
        """The signal after which all processes stop at this step; 0 to go on."""
        return signal

    def changed(self) -> None:
        """Masks moved."""

    def not_finite(self) -> list[str]:
        """Parameters whose gradient has NaN or Inf in any process: `layer.parameter (n of m)`."""
        held = dict(self.run.model.named_parameters())
        found = not_finite_gradients(held)
        return [f"{name} ({bad} of {held[name].numel()})" for name, bad in found.items()]

    def sparsity(self) -> float:
        """Of the whole model: fraction of zeros over the layers of the schedule."""
        return self.run.control.sparsity()

    def state_bytes(self) -> int:
        """Of the whole model, each number once: weights, gradients, moments, masks, buffers."""
        return measure(self.run.model, self.run.optimizer).total_bytes

    def evaluated(self, measure: Callable[[nn.Module], Any]) -> Any:
        """What `measure` finds of the model."""
        return measure(self.run.model)

    def numbers(self, evaluate: Evaluate, model: nn.Module) -> Mapping[str, float]:
        """What an evaluation says of the model, inside of `evaluated`."""
        return evaluate(model)

    def states(self) -> States | None:
        """Of the whole model, the whole optimizer, the schedule; None where not leading."""
        run = self.run
        return dict(run.model.state_dict()), run.optimizer.state_dict(), run.control.state_dict()

    def saved(self) -> None:
        """A checkpoint was written, or is being written."""

    def traffic(self) -> dict[str, int]:
        """Bytes that this process sends in a step, by purpose."""
        return {}


def not_finite_gradients(parameters: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """By name: elements of the gradient that are NaN or Inf; in their order.

    One NaN element makes AdamW's moments and the weight NaN for good, without an error.
    """
    grads = {name: gradient_numbers(param) for name, param in parameters.items()}
    counts = {
        name: int((~grad.isfinite()).sum()) for name, grad in grads.items() if grad is not None
    }
    return {name: bad for name, bad in counts.items() if bad}


def loss_of(
    objective: Objective, model: nn.Module, batch: Any, *, low: torch.dtype | None = None
) -> tuple[torch.Tensor, Mapping[str, float]]:
    """The loss as one number, and the objective's numbers; `low` is the dtype of products."""
    with torch.autocast("cpu", low or torch.bfloat16, enabled=low is not None):
        result = objective(model, batch)
    loss, found = result if isinstance(result, tuple) else (result, {})
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        got = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InputError(f"objective: must return one number as a tensor, got {got}.")
    return loss, found


@contextmanager
def recomputing(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Recompute the blocks of `model` in backward while the block runs.

    Blocks are the members of its outermost ModuleLists; a model with a `recompute` setting of its
    own is asked instead.
    """
    if not enabled:
        yield
        return
    if isinstance(getattr(model, "recompute", None), bool):
        before = model.recompute
        model.recompute = True  # type: ignore[assignment]
        try:
            yield
        finally:
            model.recompute = before
        return
    blocks = list(_blocks(model))
    if not blocks:
        raise InputError(
            "recompute: the model has no ModuleList of blocks to run again. Switch recompute off."
        )
    for block in blocks:
        # On the instance: the class and other models of it stay as they are.
        block.forward = _again(block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _again(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            # A list of single layers has nothing to throw away between them.
            yield from (block for block in child if any(True for _ in block.children()))
        else:
            yield from _blocks(child)
