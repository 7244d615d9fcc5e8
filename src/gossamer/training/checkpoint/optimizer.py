# SPDX-License-Identifier: Apache-2.0
"""An optimizer's state out of a checkpoint, to the bit.

`Optimizer.load_state_dict` casts moments to the dtype of their parameter, which would round fp32
state of bf16 weights. Here tensors are taken as they were written.
"""

from collections.abc import Mapping
from typing import Any

import torch

from gossamer.errors import ArtifactError


def restore_optimizer(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], *, keep_settings: bool = False
) -> None:
    """Put a saved `optimizer.state_dict()` into an optimizer that was built alike.

    Args:
        optimizer: holds as many parameters in as many groups as the one that was saved.
        state: tensors in it are taken over, not copied.
        keep_settings: learning rate and the like stay as they are; only moments are taken.
    """
    groups, saved = optimizer.param_groups, state.get("param_groups")
    if not isinstance(saved, list) or len(saved) != len(groups):
        raise ArtifactError(_unlike("groups", len(groups), saved))
    for group, old in zip(groups, saved, strict=True):
        if not isinstance(old, dict) or len(old.get("params", ())) != len(group["params"]):
            raise ArtifactError(_unlike("parameters", len(group["params"]), old.get("params")))
    parameters = [param for group in groups for param in group["params"]]
    entries = state.get("state")
    if not isinstance(entries, dict) or not all(
        isinstance(index, int) and 0 <= index < len(parameters) for index in entries
    ):
        raise ArtifactError("optimizer: the saved state names parameters that are not there.")
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        optimizer.load_state_dict(dict(state))  # It knows better than to cast.
        return
    optimizer.state.clear()
    for index, entry in entries.items():
        param = parameters[index]
        optimizer.state[param] = {key: _placed(value, param) for key, value in entry.items()}
    for group, old in zip(groups, saved, strict=True):
        if not keep_settings:
            group.update({key: value for key, value in old.items() if key != "params"})


def _placed(value: Any, param: torch.Tensor) -> Any:
    # Step counts stay on the CPU, as torch keeps them.
    return value.to(param.device) if isinstance(value, torch.Tensor) and value.ndim else value


def _unlike(what: str, expected: int, found: Any) -> str:
    number = len(found) if isinstance(found, list) else "none"
    return (
        f"optimizer: the checkpoint holds {number} {what}, this optimizer {expected}. It was saved"
        " by another model or optimizer; resume with the recipe of that run."
    )
