# SPDX-License-Identifier: Apache-2.0
"""What a PyG model computes between its convolutions, in memory that is used again.

A forward pass of the model has a mode of torch around it, which hands ReLU, ELU and dropout of
large features to `gossamer.ops.elementwise`: the same bits, without the price of new memory. They
are known by their function, whether a module or the model's own code calls them.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gossamer.ops.elementwise import dropout, elu, relu

# Features of fewer nodes are not large, unless they are very wide.
_LEAST_NODES = 4096

_OURS: dict[Any, Callable[..., Tensor]] = {
    F.relu: relu,
    torch.relu: relu,
    Tensor.relu: relu,
    F.elu: elu,
    F.dropout: dropout,
}


class _Between(TorchFunctionMode):
    """Calls functions of `_OURS` in the place of torch's."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _OURS.get(func, func)(*args, **(kwargs or {}))


_open = threading.local()


def _enter(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    modes = _open.__dict__.setdefault("modes", [])
    is_large = any(
        isinstance(x, Tensor) and x.ndim == 2 and x.is_floating_point() and len(x) >= _LEAST_NODES
        for x in (*args, *kwargs.values())
    )
    mode = _Between() if is_large and not torch.compiler.is_compiling() else None
    modes.append((model, mode))
    if mode is not None:
        mode.__enter__()  # type: ignore[no-untyped-call]


def _leave(model: nn.Module, args: object, output: object) -> None:
    modes = _open.__dict__.get("modes")
    if not modes or modes[-1][0] is not model:  # another hook failed before `_enter` ran
        return
    mode = modes.pop()[1]
    if mode is not None:
        mode.__exit__(None, None, None)


def watch_between(model: nn.Module) -> None:
    """Around each forward pass of a model from now on, once."""
    if _enter in model._forward_pre_hooks.values():
        return
    model.register_forward_pre_hook(_enter, with_kwargs=True)
    model.register_forward_hook(_leave, always_call=True)
