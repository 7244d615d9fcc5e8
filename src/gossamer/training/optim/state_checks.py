# SPDX-License-Identifier: Apache-2.0
"""What optimizers refuse: parameters, gradients and saved state that do not fit."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gossamer.errors import InputError

if TYPE_CHECKING:
    from gossamer.training.optim.base import SmallStateOptimizer

LOW = "master_low"
MASTER = "master"
MASTER_KEYS = (LOW, MASTER)
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def refuse_number(name: str, key: str, value: Any, below: float = float("inf")) -> None:
    """Raise InputError unless `value` is a number in [0, below)."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, (int, float)) or not 0 <= value < below:
        raise InputError(f"{name}: {key} must be in [0.0, {below}), got {value!r}.")


def refuse_parameter(name: str, param: nn.Parameter, master: str) -> None:
    """Raise InputError for a dtype that cannot be optimized with this kind of master."""
    if param.dtype not in _DTYPES:
        raise InputError(
            f"{name}: a parameter of {list(param.shape)} is {param.dtype}; expected float32,"
            " float64, bfloat16 or float16."
        )
    if param.dtype is torch.float16 and master != "fp32":
        raise InputError(
            f"{name}: a parameter of {list(param.shape)} is float16, which is not the upper half of"
            ' a float32. Use bfloat16, or master="fp32".'
        )


def refuse_gradient(name: str, param: nn.Parameter) -> None:
    """Raise InputError for a gradient that no step can be made with."""
    if param.grad is not None and param.grad.layout is not torch.strided:
        raise InputError(
            f"{name}: the gradient of a parameter of {list(param.shape)} is a sparse tensor"
            f" ({param.grad.layout}). Use dense gradients: sparse=False in nn.Embedding."
        )


def checked_state(
    optimizer: "SmallStateOptimizer", state_dict: dict[str, Any]
) -> dict[nn.Parameter, dict[str, Any]]:
    """Copies of the saved state by parameter; InputError names the first that does not fit."""
    name = type(optimizer).__name__
    saved, held = state_dict.get("param_groups"), optimizer.param_groups
    if not isinstance(saved, list) or not isinstance(state_dict.get("state"), dict):
        raise InputError(f"{name}: expected a state_dict with param_groups and state.")
    sizes = [len(group["params"]) for group in saved]
    if sizes != [len(group["params"]) for group in held]:
        raise InputError(
            f"{name}: the saved state is of groups of {sizes} parameters, the optimizer has"
            f" {[len(group['params']) for group in held]}. Build it from the same model, compacted"
            " if the saved one was."
        )
    found: dict[nn.Parameter, dict[str, Any]] = {}
    for saved_group, group in zip(saved, held, strict=True):
        settings = {**group, **saved_group}
        for index, param in zip(saved_group["params"], group["params"], strict=True):
            state = state_dict["state"].get(index)
            if state:
                found[param] = _checked(optimizer, param, settings, state, f"{name}: state {index}")
    known = {index for group in saved for index in group["params"]}
    strangers = set(state_dict["state"]) - known
    if strangers:
        raise InputError(f"{name}: saved state of unknown parameters {sorted(strangers, key=str)}.")
    return found


def _checked(
    optimizer: "SmallStateOptimizer",
    param: nn.Parameter,
    settings: dict[str, Any],
    state: dict[str, Any],
    where: str,
) -> dict[str, Any]:
    spec = optimizer.state_spec(param, settings)
    if "step" not in state:
        # Masters were split, no step was made yet.
        spec = {key: value for key, value in spec.items() if key in MASTER_KEYS}
    if set(state) != set(spec):
        raise InputError(
            f"{where}: expected {', '.join(sorted(spec))}; found {', '.join(sorted(state))}. The"
            " optimizer, its master and its moments must be those of the run that saved it."
        )
    result = {}
    for key, (shape, dtype) in spec.items():
        value = torch.as_tensor(state[key])
        if key == "step":
            value = value.to(dtype)
        if tuple(value.shape) != shape or value.dtype is not dtype:
            raise InputError(
                f"{where}: {key} is {value.dtype} {list(value.shape)}, expected {dtype}"
                f" {list(shape)} for a parameter of {param.dtype} {list(param.shape)}."
            )
        result[key] = value.detach().clone().to("cpu" if key == "step" else param.device)
    return result
