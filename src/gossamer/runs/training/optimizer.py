# SPDX-License-Identifier: Apache-2.0
"""The optimizer a `train` stage names: weights decay, biases, norms and scales do not."""

from typing import Any

import torch
from torch import nn

from gossamer.nn.layer_kinds import sparse_layers
from gossamer.recipes.stages import OptimizerSettings
from gossamer.training.optim import LAMB, LARS, SGD, AdamW

_CLASSES: dict[str, Any] = {"adamw": AdamW, "sgd": SGD, "lamb": LAMB, "lars": LARS}
_PLAIN: dict[str, Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def build_optimizer(settings: OptimizerSettings, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer over all trainable parameters of `model`.

    With plain fp32 state AdamW and SGD are torch's own: they let weights grow back, and our AdamW
    takes the same steps.
    """
    # Kept values of a compact layer are a vector, but they are a weight all the same.
    values = {id(layer.values) for _, layer in sparse_layers(model, "compact")}
    weights: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for param in model.parameters():
        if param.requires_grad:
            is_weight = param.ndim > 1 or id(param) in values
            (weights if is_weight else others).append(param)
    decays = ((weights, settings.weight_decay), (others, 0.0))
    groups = [{"params": params, "weight_decay": decay} for params, decay in decays if params]
    own = settings.model_dump(include={"lr", "betas", "momentum", "nesterov"}, exclude_none=True)
    form = {"master": settings.master, "moments": settings.moments}
    made: torch.optim.Optimizer
    if set(form.values()) == {"fp32"} and settings.name in _PLAIN:
        made = _PLAIN[settings.name](groups, **own)
    else:
        made = _CLASSES[settings.name](groups, **own, **form)
    return made
