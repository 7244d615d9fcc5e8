# SPDX-License-Identifier: Apache-2.0
"""What relufication put into a model, as data: read for files, given back, refused if lost."""

from typing import Literal, get_args

from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.relufication.activations import RectifiedNorm, ShiftedReLU

__all__ = ["ReluState", "refuse_relus", "relu_cut", "relu_states", "restore_relus"]

# "shift": relu(x - b); "threshold": x where x > b; "after": a ReLU behind a norm.
ReluState = Literal["shift", "threshold", "after"]


def relu_cut(activation: nn.Module) -> tuple[float, float]:
    """What a ReLU takes off, and the number up to which it gives 0."""
    if not isinstance(activation, ShiftedReLU):
        return 0.0, 0.0
    cut = float(activation.get_buffer("shift"))
    return (0.0 if activation.keeps else cut), cut


def relu_states(model: nn.Module) -> dict[str, ReluState]:
    """What stands where plain layers stood, by the name of the module."""
    found: dict[str, ReluState] = {}
    for name, module in model.named_modules():
        if isinstance(module, ShiftedReLU):
            found[name] = "threshold" if module.keeps else "shift"
        elif isinstance(module, RectifiedNorm):
            found[name] = "after"
    return found


def restore_relus(model: nn.Module, states: dict[str, ReluState]) -> None:
    """Put the modules that `states` names into a model that has plain ones, in place.

    Shifts are 0 until tensors are loaded. What a model has already must be the same.

    Raises:
        TargetError: there is no such module, or it is relufied otherwise.
    """
    present, modules = relu_states(model), dict(model.named_modules())
    for name, state in states.items():
        module = modules.get(name)
        if present.get(name, state) != state:
            raise TargetError(f"{name}: is relufied as '{present[name]}', and '{state}' is asked.")
        if module is None or not name or state not in get_args(ReluState):
            raise TargetError(f"{name}: '{state}' is asked for, but there is no such module.")
        if name in present:
            continue
        owner, _, attribute = name.rpartition(".")
        new = (
            RectifiedNorm(module)
            if state == "after"
            else ShiftedReLU(0.0, keeps=state == "threshold")
        )
        new.training = module.training
        setattr(model.get_submodule(owner), attribute, new)


def refuse_relus(model: nn.Module, why: str) -> None:
    """TargetError if relufication left something in `model` that would be lost."""
    for name, state in relu_states(model).items():
        raise TargetError(f"{name}: is relufied ('{state}'), and {why}.")
