# SPDX-License-Identifier: Apache-2.0
"""Work on a model that either ends well or leaves the model exactly as it was.

Afterwards the same module objects hold the same tensors with the same numbers, hooks, modes and
settings, whatever was raised on the way, KeyboardInterrupt included. What users hold of the model
(a layer, a Parameter in an optimizer, the handle of a hook) stays valid.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

Restore = Callable[[], None]

_NOT_THERE_YET = (UninitializedParameter, UninitializedBuffer)
# Tensors whose numbers an outer block holds already: it will put them back, so one copy is enough.
_HELD: ContextVar[frozenset[int]] = ContextVar("held tensors", default=frozenset())


@contextmanager
def unchanged_on_error(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    contents: Iterable[torch.Tensor] | None = None,
) -> Iterator[None]:
    """Everything about `model` as it was, if the block fails.

    Args:
        model: any module; anything inside it may be replaced.
        optimizer: its groups and its state come back, too.
        contents: tensors whose numbers may change; None: all of the model and the optimizer. They
            are held a second time until the block ends.
    """
    tensors = {id(tensor): tensor for tensor in _tensors_of(model)}
    restores = [_module_before(module) for module in model.modules()]
    restores += [_tensor_before(tensor) for tensor in tensors.values()]
    if contents is None:
        contents = list(tensors.values())
        if optimizer is not None:
            held = (value for entry in optimizer.state.values() for value in entry.values())
            contents += [value for value in held if isinstance(value, torch.Tensor)]
    if optimizer is not None:
        restores.append(_optimizer_before(optimizer))
    changing = {id(tensor): tensor for tensor in contents}
    outer = _HELD.get()
    numbers = [
        (tensor.detach(), tensor.detach().clone())
        for key, tensor in changing.items()
        if key not in outer and not isinstance(tensor, _NOT_THERE_YET)
    ]
    token = _HELD.set(outer | changing.keys())
    try:
        yield
    except BaseException:
        for restore in restores:
            restore()
        with torch.inference_mode():
            for home, kept in numbers:
                # Entries that share one place in memory cannot have been written to.
                if torch._debug_has_internal_overlap(home) != 1:
                    home.copy_(kept)
        raise
    finally:
        _HELD.reset(token)


def _tensors_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters, buffers and other tensors that modules hold, gradients included."""
    for module in model.modules():
        for table in (module._parameters, module._buffers, module.__dict__):
            for value in table.values():
                if isinstance(value, torch.Tensor):
                    yield value
                    if value.is_leaf and value.grad is not None:
                        yield value.grad


def _module_before(module: nn.Module) -> Restore:
    """Attributes of one module; its tables keep their identity, which handles of hooks need."""
    kind, attributes = type(module), dict(module.__dict__)
    tables = [v for v in attributes.values() if isinstance(v, dict | list | set)]
    settings = attributes.get("config")
    if hasattr(settings, "__dict__"):
        # Of a model of transformers: it says what its layers are like.
        tables.append(vars(settings))
    restores = [_table_before(table) for table in tables]

    def restore() -> None:
        module.__class__ = kind
        module.__dict__.clear()
        module.__dict__.update(attributes)
        for restore_table in restores:
            restore_table()

    return restore


def _members(table: Any) -> list[Any]:
    return list(table.items()) if isinstance(table, dict) else list(table)


def _table_before(table: Any) -> Restore:
    """The members of a dict, list or set; one that has them still is not touched."""
    before = _members(table)

    def restore() -> None:
        now = _members(table)
        if len(now) == len(before) and all(map(_same, now, before)):
            return
        table.clear()
        if isinstance(table, list):
            table.extend(before)
        else:
            table.update(before)

    return restore


def _same(one: Any, other: Any) -> bool:
    """Whether two members are the same objects; a pair of a dict by its parts."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other) == 2:
        return all(a is b for a, b in zip(one, other, strict=True))
    return one is other


def _tensor_before(tensor: torch.Tensor) -> Restore:
    """Where the numbers of a tensor lie, and what is attached to it; not the numbers."""
    data = None if isinstance(tensor, _NOT_THERE_YET) else tensor.detach()
    requires_grad, grad = tensor.requires_grad, tensor.grad if tensor.is_leaf else None

    def restore() -> None:
        if data is None or not tensor.is_leaf:
            return
        tensor.grad = None
        tensor.data = data
        tensor.requires_grad_(requires_grad)
        tensor.grad = grad

    return restore


def _optimizer_before(optimizer: torch.optim.Optimizer) -> Restore:
    """Groups, state and hooks of an optimizer."""
    groups = [
        (group, group | {"params": list(group["params"])}) for group in optimizer.param_groups
    ]
    state = {param: dict(entry) for param, entry in optimizer.state.items()}
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    restores = [_table_before(table) for table in hooks]

    def restore() -> None:
        optimizer.param_groups[:] = [group for group, _ in groups]
        for group, before in groups:
            group.clear()
            group.update(before)
        optimizer.state.clear()
        optimizer.state.update(state)
        for restore_table in restores:
            restore_table()

    return restore
