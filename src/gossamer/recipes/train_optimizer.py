# SPDX-License-Identifier: Apache-2.0
"""The optimizer a `train` stage names: weights decay, biases, norms and scales do not."""

from typing import Any

from torch import nn

from gossamer.nn import CompactWeight
from gossamer.recipes.train_schema import OptimizerSettings
from gossamer.train.optim import LAMB, LARS, SGD, AdamW, SmallStateOptimizer

_CLASSES: dict[str, type[SmallStateOptimizer]] = {
    "adamw": AdamW,
    "sgd": SGD,
    "lamb": LAMB,
    "lars": LARS,
}


def build_optimizer(settings: OptimizerSettings, model: nn.Module) -> SmallStateOptimizer:
    """The optimizer over all trainable parameters of `model`."""
    decayed, others = _split(model)
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    names = ("betas", "momentum", "nesterov")
    own = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    extra: dict[str, Any] = {"master": settings.master, "moments": settings.moments}
    return _CLASSES[settings.name](  # type: ignore[call-arg]
        [group for group in groups if group["params"]], lr=settings.lr, **own, **extra
    )


def _split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Weight matrices and kernels, and everything else; each parameter once, in model order."""
    # Kept values of a compact layer are a vector, but they are a weight all the same.
    values = {id(m.values) for m in model.modules() if isinstance(m, CompactWeight)}
    trained = [param for param in model.parameters() if param.requires_grad]
    decayed = [param for param in trained if param.ndim > 1 or id(param) in values]
    chosen = {id(param) for param in decayed}
    return decayed, [param for param in trained if id(param) not in chosen]
