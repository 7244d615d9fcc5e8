# SPDX-License-Identifier: Apache-2.0
"""A schedule inside the Trainer of Hugging Face transformers.

Example:
    >>> schedule = SparsityCallback({"kind": "gradual", "sparsity": 0.9})
    >>> Trainer(model, args, train_dataset=data, callbacks=[schedule]).train()
"""

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, ResourceError
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.surgery.compaction import CompactionResult, compact
from gossamer.pruning.schedules import Controller
from gossamer.runs.schedules import attach
from gossamer.training import choose_modes
from gossamer.training.loop.settings import Compaction

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ResourceError(
        "the package transformers is not installed. Install the extra [hf]: pip install"
        " 'gossamer[hf]'."
    ) from error


class SparsityCallback(TrainerCallback):
    """Attaches a schedule when training begins, steps it, and compacts when masks are final.

    Save the result with `gossamer.save(trainer.model, path)`: checkpoints of the Trainer itself
    hold compact layers that `from_pretrained` does not know, and no schedule, so resuming them is
    refused; `gossamer train` resumes to the bit.

    Args:
        schedule: what `gossamer.attach` takes.
        compaction: a mode, "auto" to measure each layer (give `tokens`), "off" to stay masked.
        tokens: rows of a Linear's input in one step, for "auto".
        data: batches, for schedules that look at data before training.
        loss: loss(model, batch), for them too.
    """

    def __init__(
        self,
        schedule: Mapping[str, Any],
        *,
        compaction: Compaction = "jit",
        tokens: int = 1,
        data: Any = None,
        loss: Any = None,
    ) -> None:
        self.controller: Controller | None = None
        self.result: CompactionResult | None = None
        if compaction in ("samo", "slim"):
            raise InputError(
                f"SparsityCallback: compaction {compaction!r} needs the loop of 'gossamer train'."
                " Use 'jit', or another mode."
            )
        self._compaction, self._tokens = compaction, tokens
        self._attach = functools.partial(attach, recipe=schedule, data=data, loss=loss)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach; masks are made from here on."""
        if state.global_step:
            raise InputError(
                f"SparsityCallback: a checkpoint of the Trainer (step {state.global_step}) holds no"
                " schedule. Start anew, or use 'gossamer train', which resumes to the bit."
            )
        self.controller = self._attach(
            kwargs["model"], optimizer=_inner(kwargs["optimizer"]), total_steps=state.max_steps
        )

    def on_pre_optimizer_step(self, *_: Any, **kwargs: Any) -> None:
        """Gradients of the schedule's own term, where it has one."""
        penalty = None if self.controller is None else self.controller.penalty()
        if penalty is not None:
            torch.autograd.backward(penalty)

    def on_optimizer_step(self, *_: Any, **kwargs: Any) -> None:
        """Let the schedule move masks while gradients are still there."""
        if self.controller is not None:
            self.controller.step()

    def on_step_end(self, *_: Any, **kwargs: Any) -> None:
        """Compact as soon as masks are final."""
        model: nn.Module = kwargs["model"]
        done = self.result is not None or self._compaction == "off"
        if done or self.controller is None or not self.controller.is_settled:
            return
        if not any(sparse_layers(model, "masked")):
            return
        mode = "jit" if self._compaction == "auto" else self._compaction
        self.result = compact(model, _inner(kwargs["optimizer"]), mode=mode)  # type: ignore[arg-type]
        if self._compaction == "auto":
            choose_modes(model, self._tokens)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The sparsity stands beside the loss."""
        if self.controller is None or kwargs.get("logs") is None:
            return
        kwargs["logs"]["sparsity"] = self.controller.sparsity()
        # The history got its entry before callbacks were asked.
        if state.log_history:
            state.log_history[-1]["sparsity"] = kwargs["logs"]["sparsity"]

    def on_train_end(self, *_: Any, **kwargs: Any) -> None:
        """Let go of the model; masks stay."""
        if self.controller is not None:
            self.controller.close()


def _inner(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer that takes the steps, which accelerate wraps."""
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    found: torch.optim.Optimizer = optimizer
    return found
