# SPDX-License-Identifier: Apache-2.0
"""Put one module in the place of another, everywhere it is registered."""

from torch import nn

from gossamer.errors import InputError

_HOOK_TABLES = (
    "_backward_pre_hooks",
    "_backward_hooks",
    "_is_full_backward_hook",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Register `new` wherever `old` is registered below `model`; shared modules stay shared."""
    if model is old:
        raise InputError(
            f"the model is itself one {type(old).__name__} and cannot be replaced in place."
            " Wrap it: model = torch.nn.Sequential(model)."
        )
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child is old:
                parent._modules[key] = new


def submodule_at(root: nn.Module, path: str) -> nn.Module:
    """The module at the dotted `path` below `root`, made on the way where it is not there."""
    module = root
    for key in path.split(".") if path else []:
        child = module._modules.get(key)
        if child is None:
            child = nn.Module()
            module.add_module(key, child)
        module = child
    return module


def inherit_hooks(new: nn.Module, old: nn.Module) -> None:
    """Give `new` the mode and the call hooks of `old`; handles that users hold keep working."""
    new.training = old.training
    for table in _HOOK_TABLES:
        new.__dict__[table] = old.__dict__[table]
