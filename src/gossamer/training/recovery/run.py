# SPDX-License-Identifier: Apache-2.0
"""A short training run that wins back what pruning cost: masks are held, the best state is kept.

Compact layers hold their masks by construction, masked ones in forward.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gossamer.data.batches import Batches, RepeatedBatches
from gossamer.errors import InputError
from gossamer.training.checkpoint.folders import Checkpoint
from gossamer.training.loop.loop import Loop
from gossamer.training.loop.run_context import Objective, Surroundings
from gossamer.training.recovery.schedule import HELD_OUT, Schedule

_ALONE = Surroundings()


def recover(
    model: nn.Module,
    objective: Objective,
    batches: Batches | Sequence[Any],
    schedule: Schedule,
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
        objective: loss of (model, batch), or the loss and its named parts; see `Distillation`.
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
        torch.optim.AdamW(trained, lr=schedule.rate, weight_decay=0.0),
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
