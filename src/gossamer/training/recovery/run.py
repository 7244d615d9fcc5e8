# SPDX-License-Identifier: Apache-2.0
"""A short training run that wins back what pruning cost: masks are held, the best state is kept.

Compact layers hold their masks by construction, masked ones in forward. Masked layers may be in
compact form for the time of a run, then masked again: gradients, moments and kept states are
vectors of kept values; dense weights do not exist meanwhile.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from gossamer.data import Batches, RepeatedBatches
from gossamer.errors import InputError
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.layers.tables import table_of
from gossamer.nn.surgery import replace_module
from gossamer.nn.surgery.compaction import compact
from gossamer.training.checkpoint import Checkpoint
from gossamer.training.loop import LearningRate, Loop, LoopSettings, Objective, Surroundings
from gossamer.training.loop.settings import Shape
from gossamer.training.modes import ModeChoice, choose_modes
from gossamer.training.optim import SideBySide
from gossamer.training.optim.tables import TableAdam

HELD_OUT = "held_out_loss"


_ALONE = Surroundings()


@dataclass(frozen=True)
class RecoverySchedule:
    """A short run: warm-up, then down to zero.

    Attributes:
        steps: of the optimizer, at most.
        minutes: of training and validation, at most; None: as long as the steps take. With a limit
            in minutes the result depends on the machine's speed.
        rate: highest learning rate.
        warmup: fraction of the run in which the rate rises.
        decay: how it falls to zero; "constant" does not.
        clip: largest norm of all gradients together.
        checks: how often the model is validated, evenly spread; the start is one more.
        checkpoint_every: steps between two checkpoints.
        on_full_disk: "stop", or "go-on" without the checkpoint.
    """

    steps: int = 1000
    minutes: float | None = None
    rate: float = 3e-4
    warmup: float = 0.05
    decay: Shape = "linear"
    clip: float = 1.0
    checks: int = 8
    checkpoint_every: int = 0
    on_full_disk: Literal["stop", "go-on"] = "stop"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.checks < 1:
            raise InputError(
                "recovery: steps and checks must be at least 1, got"
                f" {self.steps} and {self.checks}."
            )
        if not self.rate > 0:
            raise InputError(f"recovery: rate must be above 0, got {self.rate}.")
        if not 0 <= self.warmup < 1:
            raise InputError(f"recovery: warmup must be in [0, 1), got {self.warmup}.")

    def loop_settings(self, *, keep_best: bool) -> LoopSettings:
        """The same in the loop's words.

        The model is trained in eval mode: without dropout, and with the running statistics it has,
        it can match a teacher exactly. Its layers have their form already.
        """
        return LoopSettings(
            steps=self.steps,
            minutes=self.minutes,
            rate=LearningRate(self.decay, self.steps, round(self.warmup * self.steps)),
            clip=self.clip,
            in_train_mode=False,
            compaction="off",
            keep_best=HELD_OUT if keep_best else None,
            evaluate_every=math.ceil(self.steps / self.checks),
            checkpoint_every=self.checkpoint_every,
            on_full_disk=self.on_full_disk,
        )


def _optimizer(
    model: nn.Module, trained: Sequence[nn.Parameter], rate: float
) -> torch.optim.Optimizer:
    """AdamW; rows of tables that are trained in few bits by the same rule, where they were touched.

    Gradients of such tables hold touched rows, which AdamW does not take.
    """
    tables = {
        id(table.get_parameter("weight"))
        for table in map(table_of, model.modules())
        if table is not None and table.form == "trained"
    }
    dense = [parameter for parameter in trained if id(parameter) not in tables]
    rows = [parameter for parameter in trained if id(parameter) in tables]
    made: list[torch.optim.Optimizer] = []
    if dense:
        made.append(torch.optim.AdamW(dense, lr=rate, weight_decay=0.0))
    if rows:
        made.append(TableAdam(rows, lr=rate))
    return made[0] if len(made) == 1 else SideBySide(made)


def recover(
    model: nn.Module,
    objective: Objective,
    batches: Batches | Sequence[Any],
    schedule: RecoverySchedule,
    *,
    validate: Callable[[nn.Module], float] | None = None,
    around: Surroundings = _ALONE,
    checkpoint: Checkpoint | None = None,
) -> Loop:
    """Train the parameters of `model` that take gradients, with AdamW, in place.

    With a limit in steps the result depends on model, batches and seed only, to the last bit, for
    one machine and number of threads. An error leaves the state that was best so far.

    Args:
        model: usually compact, see `gossamer.compact`.
        objective: loss of (model, batch), or the loss and its named parts, such as
            `DistillationObjective`.
        batches: by number, or a list that is gone through again and again.
        schedule: steps, minutes, rates, checks.
        validate: lower is better, looked at in every check: the best state is kept. Without it the
            last one is.
        around: what the run reports to, and where it is kept.
        checkpoint: of a run like this one, to go on with.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise InputError("recovery: no parameter of the model takes gradients.")
    if validate is not None:
        around = replace(around, evaluate=lambda net: {HELD_OUT: validate(net)})
    loop = Loop(
        model,
        _optimizer(model, trained, schedule.rate),
        objective,
        RepeatedBatches(list(batches)) if isinstance(batches, list | tuple) else batches,
        schedule.loop_settings(keep_best=validate is not None),
        around=around,
    )
    modes = {module: module.training for module in model.modules()}
    try:
        if checkpoint is not None:
            loop.restore(checkpoint)
        loop.train()
    finally:
        loop.close()
        for module, training in modes.items():
            module.training = training
        model.zero_grad()
    return loop


@contextmanager
def compact_form(model: nn.Module, tokens: int) -> Iterator[list[ModeChoice]]:
    """Compact layers inside, each in the mode that is faster for `tokens` rows of a Linear's input.

    Afterwards the same masked layers, with the same Parameters, hold what the compact ones learned.
    Layers that were compact before stay compact, in the chosen mode.
    """
    masked = {name: layer for name, layer in sparse_layers(model, "masked") if layer.is_called}
    left = compact(model).left_masked if masked else {}
    now = dict(sparse_layers(model, "compact"))
    pairs = [(layer, now[name]) for name, layer in masked.items() if name not in left]
    for layer, _ in pairs:
        weight = layer.weight_parameter()
        weight.data = weight.data.new_empty(0)
    try:
        yield choose_modes(model, tokens)
    finally:
        # Tied layers share one weight, which is written once or twice alike.
        for layer, compacted in pairs:
            weight = layer.weight_parameter()
            weight.data = compacted.dense_weight().detach()
            weight.grad = None
            replace_module(model, compacted, layer)
