# SPDX-License-Identifier: Apache-2.0
"""The state of an optimizer for a parameter that has grown.

Means of gradients fall with the gradient, means of squares with its square; step counts stay.
Anything else has no rule and is refused before anything changes.
"""

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.training.growth.plan import SlotPlan
from gossamer.training.growth.slots import GrownParameter
from gossamer.training.growth.tensors import Factors, Quantity
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


def check_growable(
    optimizer: torch.optim.Optimizer, named: dict[torch.Tensor, str], *, is_kept: bool
) -> None:
    """Raise InputError if the state that is kept of a parameter holds something without a rule."""
    held = {p for group in optimizer.param_groups for p in group["params"]}
    for param in held - named.keys():
        raise InputError(
            f"grow: the optimizer holds a parameter of shape {list(param.shape)} that is not in"
            " the model. Give the optimizer of this model."
        )
    if isinstance(optimizer, SmallStateOptimizer) or not is_kept:
        return
    for param, state in optimizer.state.items():
        for key, value in state.items():
            if not is_scalar(value) and key not in _QUANTITIES:
                raise InputError(
                    f"grow: {type(optimizer).__name__} keeps {key!r} for {named[param]}, and there"
                    " is no rule for how it grows. Use AdamW, SGD, LAMB, LARS or Adafactor, or"
                    " state='reset'."
                )


def grown_state(
    optimizer: torch.optim.Optimizer, old: nn.Parameter, slot: GrownParameter, factors: Factors
) -> dict[str, Any]:
    """Moments and step count of `old` after growth; masters are split again by the optimizer."""
    state = optimizer.state[old]
    if isinstance(optimizer, SmallStateOptimizer):
        grown = {key: value.clone() for key, value in state.items() if key == "step"}
        for moment in optimizer.MOMENTS:
            if moment.key in state:
                convert = partial(slot.grown, quantity=_QUANTITIES[moment.key], factors=factors)
                grown |= moment.mapped(state, convert)
        return grown

    def grown_entry(key: str, value: Any) -> Any:
        if is_scalar(value):
            return copy.deepcopy(value)
        whole = slot.grown(value.expand(old.shape), quantity_of(optimizer, key), factors)
        if value.shape == old.shape:
            return whole
        # Rows or columns of a factored moment: alike along the other side.
        sides = zip(value.shape, old.shape, strict=True)
        return whole[tuple(slice(None if have == want else 1) for have, want in sides)].clone()

    return {key: grown_entry(key, value) for key, value in state.items()}


def quantity_of(optimizer: torch.optim.Optimizer, key: str) -> Quantity:
    """What an entry of the state is; `check_growable` said that it is known."""
    if key == "momentum_buffer" and isinstance(optimizer, torch.optim.RMSprop):
        # It averages steps, which were divided by their size already.
        return "step"
    return _QUANTITIES[key]


def is_scalar(value: Any) -> bool:
    """Whether an entry belongs to the whole parameter, such as a count of steps."""
    return not isinstance(value, torch.Tensor) or value.ndim == 0


def _split_in(optimizer: SmallStateOptimizer, slots: list[GrownParameter]) -> list[nn.Parameter]:
    """New Parameters whose old masters lie in the optimizer, wholly or in part."""
    pairs = [(s.param, s.source) for s in slots if s.source is not None]
    dtypes = {param: old.dtype for param, old in pairs if old in optimizer.state}
    if torch.float16 in dtypes.values():
        raise InputError("grow: float16 parameters with masters are not grown. Use bfloat16.")
    return [param for param, dtype in dtypes.items() if dtype is torch.bfloat16]


def move_optimizer(
    optimizer: torch.optim.Optimizer,
    slots: list[GrownParameter],
    plan: SlotPlan,
    larger: nn.Module,
) -> None:
    """Let the optimizer hold the larger parameters, in the groups of their sources."""
    homes = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    order = {p: i for i, p in enumerate(larger.parameters())}
    members: list[list[GrownParameter]] = [[] for _ in optimizer.param_groups]
    rule = plan.growth.state
    state: dict[torch.Tensor, Any] = {}
    for slot in sorted(slots, key=lambda slot: order[slot.param]):
        home = _home(slot, slots, homes)
        if home is not None:
            members[home].append(slot)
        keeps = rule == "grow" or (rule == "old" and not slot.is_new)
        if keeps and slot.source is not None and slot.source in optimizer.state:
            state[slot.param] = grown_state(optimizer, slot.source, slot, plan.factors)
    split = _split_in(optimizer, slots) if isinstance(optimizer, SmallStateOptimizer) else []
    for group, chosen in zip(optimizer.param_groups, members, strict=True):
        group["params"] = [slot.param for slot in chosen]
    optimizer.state.clear()
    optimizer.state.update(state)
    if isinstance(optimizer, SmallStateOptimizer):
        optimizer.split_masters(split)
    if plan.growth.mup:
        _slow_down(optimizer, members, plan)


def _home(
    slot: GrownParameter, slots: list[GrownParameter], homes: dict[nn.Parameter, int]
) -> int | None:
    """The group of a Parameter: that of its source, else of one with as many dimensions."""
    if slot.source is not None:
        return homes.get(slot.source)
    for other in slots:
        if other.param.ndim == slot.param.ndim and other.source in homes:
            return homes[other.source]
    return min(homes.values(), default=None)


def _slow_down(
    optimizer: torch.optim.Optimizer, members: list[list[GrownParameter]], plan: SlotPlan
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
