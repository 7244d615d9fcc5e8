# SPDX-License-Identifier: Apache-2.0
"""Which formula a parameter in an optimizer follows."""

from typing import Any

import torch
from torch import nn

from gossamer.nn import CompactWeight, MaskedWeight
from gossamer.nn.layers.parts import DenseHome
from gossamer.training.memory.formulas import StateCost, dense_cost, moment_bytes, state_cost
from gossamer.training.optim import SmallStateOptimizer

_MASTER_BYTES = {"split": 2, "split8": 1, "fp32": 4}
_TORCH_ADAMS = (torch.optim.Adam, torch.optim.AdamW)


def predicted_cost(
    param: nn.Parameter,
    layer: CompactWeight | MaskedWeight | None,
    optimizer: torch.optim.Optimizer | None,
) -> StateCost | None:
    """The cost of a parameter with its gradient; None for an optimizer without a formula."""
    group = _group_of(optimizer, param)
    size = param.element_size()
    found: tuple[float, float] | None = (0.0, 0.0)
    if param.grad is not None and group is not None:
        found = _state_bytes(optimizer, group, param)
    if found is None:
        return None
    master, moments = found
    if isinstance(layer, CompactWeight):
        cost = state_cost(
            weight_bytes=size,
            master_bytes=master,
            moment_bytes=moments,
            dense_bytes=size if layer.mode == "resident" else 0,
            values_in_dense=DenseHome.of(param) is not None,
        )
    else:
        cost = dense_cost(weight_bytes=size, master_bytes=master, moment_bytes=moments)
    kept, always = dict(cost.per_kept), dict(cost.per_weight)
    if isinstance(layer, MaskedWeight):
        always["positions"] = 1 + 1 / 8
    if param.grad is None:
        kept["gradients"] = always["gradients"] = 0
    return StateCost(kept, always)


def _group_of(
    optimizer: torch.optim.Optimizer | None, param: nn.Parameter
) -> dict[str, Any] | None:
    groups = [] if optimizer is None else optimizer.param_groups
    return next((g for g in groups if any(held is param for held in g["params"])), None)


def _state_bytes(
    optimizer: torch.optim.Optimizer | None, group: dict[str, Any], param: nn.Parameter
) -> tuple[float, float] | None:
    """Bytes of master and of moments per entry."""
    if isinstance(optimizer, SmallStateOptimizer):
        own_master = param.dtype in (torch.float32, torch.float64)
        master = 0 if own_master else _MASTER_BYTES[group["master"]]
        count, eight_bit = len(optimizer.moments_of(group)), group["moments"] == "8bit"
        factor = 2 if param.dtype is torch.float64 and not eight_bit else 1
        return master, moment_bytes(count, eight_bit=eight_bit) * factor
    if type(optimizer) in _TORCH_ADAMS:
        return 0, (3 if group["amsgrad"] else 2) * param.element_size()
    if type(optimizer) is torch.optim.SGD:
        return 0, param.element_size() if group["momentum"] else 0
    return None
