# SPDX-License-Identifier: Apache-2.0
"""What a call of a module does besides the forward of its class, and what saving it does."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.prune import BasePruningMethod

PRUNED_BY_TORCH = (
    "torch.nn.utils.prune computes its weight in a hook; call gossamer.io.adopt_pruned(model)"
    " first, which makes it a masked layer"
)

_CALL_HOOKS = {
    "_forward_pre_hooks": "a forward pre-hook",
    "_forward_hooks": "a forward hook",
    "_backward_pre_hooks": "a backward pre-hook",
    "_backward_hooks": "a backward hook",
}
_STATE_HOOKS = {
    "_state_dict_hooks": "a state_dict hook",
    "_state_dict_pre_hooks": "a state_dict pre-hook",
    "_load_state_dict_pre_hooks": "a load_state_dict pre-hook",
    "_load_state_dict_post_hooks": "a load_state_dict hook",
}
# Installed by transformers when hidden states were asked for once; they do nothing in other calls,
# and calls that ask for hidden states run the stock layers.
_IDLE_HOOKS = "transformers.utils.output_capturing"
_IDLE = "_gossamer_idle"
_LIBRARIES = ("torch", "transformers", "gossamer")


def carried_by_calls(module: nn.Module) -> str | None:
    """What a call of `module` does besides the forward of its class; None if nothing."""
    for table, words in _CALL_HOOKS.items():
        hooks = [h for h in module.__dict__[table].values() if not _is_idle(h)]
        if any(isinstance(hook, BasePruningMethod) for hook in hooks):
            return PRUNED_BY_TORCH
        if hooks:
            return f"it carries {words}"
    if own := own_call(module):
        return own
    # Hooks on every module at once.
    for table in _CALL_HOOKS:
        if getattr(torch_module, f"_global{table}"):
            return "a hook is registered for all modules (register_module_*_hook)"
    return None


def own_call(module: nn.Module) -> str | None:
    """Whether a call of `module` runs something else than the forward of its class."""
    if "forward" in module.__dict__ or "__call__" in module.__dict__:
        return "its forward was replaced on this instance"
    if module.__dict__.get("_compiled_call_impl") is not None:
        return "it was compiled by itself with module.compile()"
    if not is_as_written(type(module).__call__):
        return f"{type(module).__name__} has a __call__ of its own"
    return None


def carried_by_state(module: nn.Module) -> str | None:
    """What saving or loading `module` does besides what its class does; None if nothing."""
    found = (words for table, words in _STATE_HOOKS.items() if module.__dict__[table])
    return next((f"it carries {words}" for words in found), None)


def call_hooks(module: nn.Module) -> list[Any]:
    """Hooks that run when `module` is called or differentiated."""
    return [hook for table in _CALL_HOOKS for hook in module.__dict__[table].values()]


class Watch:
    """Modules that are computed without being called; whether somebody hooked one of them since."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = tuple(modules)
        # Backward hooks have nothing to do at inference.
        tables = ("_forward_pre_hooks", "_forward_hooks")
        self._tables = tuple(m.__dict__[table] for m in self._modules for table in tables)

    def finds_hooks(self) -> bool:
        """Whether the modules must be called one by one; it costs microseconds for a hundred."""
        return any(self._tables) and any(carried_by_calls(m) is not None for m in self._modules)


def idle(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook for which no module has to be called that would not be: it times those that are."""
    hook.__dict__[_IDLE] = True
    return hook


def _is_idle(hook: Any) -> bool:
    return getattr(hook, "__module__", None) == _IDLE_HOOKS or getattr(hook, _IDLE, False)


def is_as_written(function: Any) -> bool:
    """Whether a method is as its library wrote it."""
    return str(getattr(function, "__module__", "")).split(".")[0] in _LIBRARIES
