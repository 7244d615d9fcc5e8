# SPDX-License-Identifier: Apache-2.0
"""Training of mixtures: the losses of routing, experts that saw no token, the bias of routers.

One Parameter holds the weights of all experts of a layer, so that an optimizer would move those
that saw no token, too: by momentum and by decay. Here they stay, and so do their moments, as if
they had Parameters of their own without a gradient.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from gossamer.nn.moe import has_experts, idle_experts, moe_layers, take_routing
from gossamer.training.optim.kept_parts import keep_part

__all__ = ["follow_experts", "with_routing"]

Loss = Callable[[nn.Module, Any], Any]


def with_routing(loss: Loss) -> Loss:
    """The same loss with what keeps the experts of a model in balance, and numbers about it.

    A model without mixtures has the loss that it had.
    """

    def total(model: nn.Module, batch: Any) -> Any:
        own = model.module if isinstance(model, DistributedDataParallel) else model
        take_routing(own)  # of calls that were not for training
        result = loss(model, batch)
        added, numbers = take_routing(own)
        if added is None:
            return result
        if isinstance(result, tuple):
            return result[0] + added, {**result[1], **numbers}
        return result + added, numbers

    return total


def follow_experts(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[RemovableHandle]:
    """From now on a step leaves experts alone that saw no token, and moves the bias of routers.

    An expert saw none if all of its gradient is zero, in whatever process. Removing the handles
    ends it.
    """
    if not has_experts(model):
        return []
    kept: list[Callable[[], None]] = []

    def before(holder: torch.optim.Optimizer, *_: object) -> None:
        for parameter, idle in idle_experts(model):
            held = holder.state.get(parameter, {})
            for part in idle:
                kept.extend(keep_part(parameter, held, part))

    def after(*given: object) -> None:
        with torch.no_grad():
            for put_back in kept:
                put_back()
        kept.clear()
        for _, layer in moe_layers(model):
            layer.router.follow_load()

    return [
        optimizer.register_step_pre_hook(before),
        optimizer.register_step_post_hook(after),
    ]
