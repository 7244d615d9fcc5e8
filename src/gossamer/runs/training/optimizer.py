# SPDX-License-Identifier: Apache-2.0
"""The optimizer a `train` stage names: weights decay, biases, norms and scales do not."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gossamer.nn.layer_kinds import sparse_layers
from gossamer.recipes.stages import OptimizerSettings
from gossamer.training.optim import LAMB, LARS, SGD, AdamW

_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": AdamW,
    "sgd": SGD,
    "lamb": LAMB,
    "lars": LARS,
}
_PLAIN: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def build_optimizer(settings: OptimizerSettings, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer over all trainable parameters of `model`.

    With plain fp32 state AdamW and SGD are torch's own: they let weights grow back, and our AdamW
    takes the same steps.
    """
    decayed, others = _split(model)
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    names = ("betas", "momentum", "nesterov")
    own = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    chosen = [group for group in groups if group["params"]]
    if (settings.master, settings.moments) == ("fp32", "fp32") and settings.name in _PLAIN:
        return _PLAIN[settings.name](chosen, lr=settings.lr, **own)
    extra: dict[str, Any] = {"master": settings.master, "moments": settings.moments}
    return _CLASSES[settings.name](chosen, lr=settings.lr, **own, **extra)


def _split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Weight matrices and kernels, and everything else; each parameter once, in model order."""
    # Kept values of a compact layer are a vector, but they are a weight all the same.
    values = {id(layer.values) for _, layer in sparse_layers(model, "compact")}
    trained = [param for param in model.parameters() if param.requires_grad]
    decayed = [param for param in trained if param.ndim > 1 or id(param) in values]
    chosen = {id(param) for param in decayed}
    return decayed, [param for param in trained if id(param) not in chosen]
