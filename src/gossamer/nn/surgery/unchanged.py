# SPDX-License-Identifier: Apache-2.0
"""Work on a model that either ends well or leaves the model exactly as it was.

Afterwards the same module objects hold the same tensors with the same numbers, hooks, modes and
settings, whatever was raised on the way, KeyboardInterrupt included. What users hold of the model
(a layer, a Parameter in an optimizer, the handle of a hook) stays valid.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

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
    modules = [_ModuleBefore(module) for module in model.modules()]
    groups = None if optimizer is None else _OptimizerBefore(optimizer)
    tensors = {id(tensor): tensor for module in modules for tensor in module.tensors()}
    if contents is None:
        changing = dict(tensors)
        if groups is not None:
            changing |= {id(tensor): tensor for tensor in groups.tensors()}
    else:
        changing = {id(tensor): tensor for tensor in contents}
    outer = _HELD.get()
    numbers = [
        (tensor.detach(), tensor.detach().clone())
        for key, tensor in changing.items()
        if key not in outer and not isinstance(tensor, _NOT_THERE_YET)
    ]
    faces = [_TensorBefore(tensor) for tensor in tensors.values()]
    token = _HELD.set(outer | changing.keys())
    try:
        yield
    except BaseException:
        for module in modules:
            module.restore()
        for face in faces:
            face.restore()
        if groups is not None:
            groups.restore()
        with torch.inference_mode():
            for home, kept in numbers:
                # Entries that share one place in memory cannot have been written to.
                if torch._debug_has_internal_overlap(home) != 1:
                    home.copy_(kept)
        raise
    finally:
        _HELD.reset(token)


class _ModuleBefore:
    """Attributes of one module; its tables keep their identity, which handles of hooks need."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._class = module, type(module)
        self._attributes = dict(module.__dict__)
        tables = [v for v in self._attributes.values() if isinstance(v, dict | list | set)]
        settings = self._attributes.get("config")
        if hasattr(settings, "__dict__"):
            # Of a model of transformers: it says what its layers are like.
            tables.append(vars(settings))
        self._tables = [_TableBefore(table) for table in tables]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Parameters, buffers and other tensors of this module alone, gradients included."""
        held = [self._attributes["_parameters"], self._attributes["_buffers"], self._attributes]
        for table in held:
            for value in table.values():
                if isinstance(value, torch.Tensor):
                    yield value
                    if value.is_leaf and value.grad is not None:
                        yield value.grad

    def restore(self) -> None:
        self._module.__class__ = self._class
        attributes = self._module.__dict__
        attributes.clear()
        attributes.update(self._attributes)
        for table in self._tables:
            table.restore()


class _TableBefore:
    """The members of a dict, list or set; one that has them still is not touched."""

    def __init__(self, table: Any) -> None:
        self._table, self._before = table, self._members(table)

    @staticmethod
    def _members(table: Any) -> list[Any]:
        return list(table.items()) if isinstance(table, dict) else list(table)

    def restore(self) -> None:
        now = self._members(self._table)
        if len(now) == len(self._before) and all(map(_same, now, self._before)):
            return
        self._table.clear()
        if isinstance(self._table, list):
            self._table.extend(self._before)
        else:
            self._table.update(self._before)


def _same(one: Any, other: Any) -> bool:
    """Whether two members are the same objects; a pair of a dict by its parts."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other) == 2:
        return all(a is b for a, b in zip(one, other, strict=True))
    return one is other


class _TensorBefore:
    """Where the numbers of a tensor lie, and what is attached to it; not the numbers."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._data = None if isinstance(tensor, _NOT_THERE_YET) else tensor.detach()
        self._requires_grad = tensor.requires_grad
        self._grad = tensor.grad if tensor.is_leaf else None

    def restore(self) -> None:
        if self._data is None or not self._tensor.is_leaf:
            return
        self._tensor.grad = None
        self._tensor.data = self._data
        self._tensor.requires_grad_(self._requires_grad)
        self._tensor.grad = self._grad


class _OptimizerBefore:
    """Groups, state and hooks of an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = [
            (group, {**group, "params": list(group["params"])}) for group in optimizer.param_groups
        ]
        self._state = {param: dict(entry) for param, entry in optimizer.state.items()}
        hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        self._hooks = [_TableBefore(table) for table in hooks]

    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors of its state."""
        for entry in self._state.values():
            yield from (value for value in entry.values() if isinstance(value, torch.Tensor))

    def restore(self) -> None:
        optimizer = self._optimizer
        optimizer.param_groups[:] = [group for group, _ in self._groups]
        for group, before in self._groups:
            group.clear()
            group.update(before)
        optimizer.state.clear()
        optimizer.state.update(self._state)
        for table in self._hooks:
            table.restore()
