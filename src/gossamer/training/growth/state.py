# SPDX-License-Identifier: Apache-2.0
"""The state of an optimizer for a parameter that has grown.

Means of gradients fall with the gradient, means of squares with its square; step counts stay.
Anything else has no rule and is refused before anything changes.
"""

from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.training.growth.plan import GrowthPlan
from gossamer.training.growth.slots import Grow, GrownParameter, grower
from gossamer.training.growth.tensors import Quantity
from gossamer.training.optim import SmallStateOptimizer

# Of torch's optimizers and of gossamer's. Factored second moments are rows and columns of a square.
_QUANTITIES: dict[str, Quantity] = {
    "exp_avg": "mean",
    "momentum_buffer": "mean",
    "grad_avg": "mean",
    "exp_avg_sq": "square",
    "max_exp_avg_sq": "square",
    "square_avg": "square",
    "sum": "square",
    "variance": "square",
    "row_var": "square",
    "col_var": "square",
}


def check_growable(optimizer: torch.optim.Optimizer, named: dict[torch.Tensor, str]) -> None:
    """Raise InputError if the state of a parameter holds something without a rule."""
    held = {p for group in optimizer.param_groups for p in group["params"]}
    for param in held - named.keys():
        raise InputError(
            f"grow: the optimizer holds a parameter of shape {list(param.shape)} that is not in"
            " the model. Give the optimizer of this model."
        )
    if isinstance(optimizer, SmallStateOptimizer):
        return
    for param, state in optimizer.state.items():
        for key, value in state.items():
            is_scalar = not isinstance(value, torch.Tensor) or value.ndim == 0
            if not is_scalar and key not in _QUANTITIES:
                raise InputError(
                    f"grow: {type(optimizer).__name__} keeps {key!r} for {named[param]}, and there"
                    " is no rule for how it grows. Use AdamW, SGD, LAMB, LARS or Adafactor, or"
                    " state='reset'."
                )


def is_split(optimizer: torch.optim.Optimizer | None, param: nn.Parameter) -> bool:
    """Whether the master of a parameter lies in the optimizer, wholly or in part."""
    small = isinstance(optimizer, SmallStateOptimizer) and param in optimizer.state
    if small and param.dtype is torch.float16:
        raise InputError("grow: float16 parameters with masters are not grown. Use bfloat16.")
    return small and param.dtype is torch.bfloat16


def grown_state(optimizer: torch.optim.Optimizer, old: nn.Parameter, grow: Grow) -> dict[str, Any]:
    """Moments and step count of `old` after growth; masters are split again by the optimizer."""
    state = optimizer.state.get(old, {})
    if not isinstance(optimizer, SmallStateOptimizer):
        # RMSprop averages steps, which were divided by their size already.
        own: dict[str, Quantity] = {}
        if isinstance(optimizer, torch.optim.RMSprop):
            own = {"momentum_buffer": "step"}
        rules = _QUANTITIES | own
        return {key: _grown(value, old, grow, rules.get(key)) for key, value in state.items()}
    grown = {key: value.clone() for key, value in state.items() if key == "step"}
    for moment in optimizer.MOMENTS:
        quantity = _QUANTITIES[moment.key]

        def convert(tensor: torch.Tensor, quantity: Quantity = quantity) -> torch.Tensor:
            return grow(tensor, quantity)

        if moment.key in state:
            grown |= moment.mapped(state, convert)
    return grown


def _grown(value: Any, old: nn.Parameter, grow: Grow, quantity: Quantity | None) -> Any:
    if not isinstance(value, torch.Tensor) or value.ndim == 0 or quantity is None:
        return value.clone() if isinstance(value, torch.Tensor) else value
    whole = grow(value.expand(old.shape), quantity)
    if value.shape == old.shape:
        return whole
    # Rows or columns of a factored moment: alike along the other side.
    picks = tuple(
        slice(None) if have == want else slice(0, 1)
        for have, want in zip(value.shape, old.shape, strict=True)
    )
    return whole[picks].clone()


def move_optimizer(
    optimizer: torch.optim.Optimizer,
    slots: list[GrownParameter],
    plan: GrowthPlan,
    larger: nn.Module,
) -> None:
    """Let the optimizer hold the larger parameters, in the groups of their sources."""
    homes = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    order = {p: i for i, p in enumerate(larger.parameters())}
    members: list[list[GrownParameter]] = [[] for _ in optimizer.param_groups]
    rule, state = plan.growth.state, {}
    for slot in sorted(slots, key=lambda slot: order[slot.param]):
        home = _home(slot, slots, homes)
        if home is not None:
            members[home].append(slot)
        keeps = rule == "grow" or (rule == "old" and not slot.is_new)
        if keeps and slot.source is not None and slot.source in optimizer.state:
            state[slot.param] = grown_state(optimizer, slot.source, grower(slot, plan))
    split = [s.param for s in slots if s.source is not None and is_split(optimizer, s.source)]
    for group, chosen in zip(optimizer.param_groups, members, strict=True):
        group["params"] = [slot.param for slot in chosen]
    optimizer.state.clear()
    for param, entry in state.items():
        optimizer.state[param] = entry
    if split and isinstance(optimizer, SmallStateOptimizer):
        optimizer.split_masters(split)
    if plan.growth.mup:
        _slow_down(optimizer, members, plan)


def _home(
    slot: GrownParameter, slots: list[GrownParameter], homes: dict[nn.Parameter, int]
) -> int | None:
    """The group of a Parameter: that of its source, else of one with as many dimensions."""
    if slot.source is not None:
        return homes.get(slot.source)
    alike = [other.source for other in slots if other.param.ndim == slot.param.ndim]
    found = [homes[source] for source in alike if source is not None and source in homes]
    return found[0] if found else min(homes.values(), default=None)


def _slow_down(
    optimizer: torch.optim.Optimizer, members: list[list[GrownParameter]], plan: GrowthPlan
) -> None:
    """Hidden matrices that read k copies learn with 1 / k of the rate, in groups of their own."""
    for group, chosen in zip(list(optimizer.param_groups), members, strict=True):
        by_factor: dict[int, list[nn.Parameter]] = {1: []}
        for slot in chosen:
            factor = 1 if slot.axes.is_head else plan.factors.of(slot.axes.read)
            by_factor.setdefault(factor, []).append(slot.param)
        group["params"] = by_factor.pop(1)
        for factor, params in sorted(by_factor.items()):
            slower = {**group, "params": params}
            slower |= {key: group[key] / factor for key in ("lr", "initial_lr") if key in group}
            optimizer.add_param_group(slower)
