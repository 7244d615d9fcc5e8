# SPDX-License-Identifier: Apache-2.0
"""Operators by name: which functions of torch mean `linear`, `matmul`, `softmax` and the others."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.errors import RegistryError

Function = Callable[..., Any]

_FUNCTIONS: dict[str, tuple[Function, ...]] = {
    "linear": (F.linear,),
    "matmul": (
        *(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__),
        *(torch.mm, Tensor.mm, torch.bmm, Tensor.bmm),
    ),
    "addmm": (torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm),
    "einsum": (torch.einsum,),
    "conv": (F.conv1d, F.conv2d, F.conv3d),
    "add": (
        *(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__),
        *(Tensor.add_, Tensor.__iadd__),
    ),
    "sub": (
        *(torch.sub, Tensor.sub, Tensor.__sub__, Tensor.__rsub__),
        *(Tensor.sub_, Tensor.__isub__),
    ),
    "mul": (
        *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__),
        *(Tensor.mul_, Tensor.__imul__),
    ),
    "div": (torch.div, Tensor.div, Tensor.__truediv__),
    "softmax": (torch.softmax, Tensor.softmax, F.softmax),
    "attention": (F.scaled_dot_product_attention, F.multi_head_attention_forward),
    "embedding": (F.embedding,),
    "embedding_bag": (F.embedding_bag,),
    "relu": (F.relu, torch.relu, Tensor.relu, torch.relu_, Tensor.relu_),
    "gelu": (F.gelu,),
    "silu": (F.silu,),
    "tanh": (torch.tanh, Tensor.tanh, F.tanh),
    "sigmoid": (torch.sigmoid, Tensor.sigmoid, F.sigmoid),
    "layer_norm": (F.layer_norm, torch.layer_norm),
    "batch_norm": (F.batch_norm,),
    "rms_norm": (F.rms_norm,),
    "dropout": (F.dropout,),
    "cat": (torch.cat,),
}
_NAMES = {function: name for name, functions in _FUNCTIONS.items() for function in functions}


def _in_place(functions: Iterable[Function]) -> set[Function]:
    named = {function: getattr(function, "__name__", "") for function in functions}
    return {f for f, name in named.items() if re.fullmatch(r"__i\w+__|\w*[^_]_", name)}


_IN_PLACE = _in_place(_NAMES)


def operator_of(function: Function) -> str | None:
    """The name of the operator that a function of torch means; None if it is none of the table."""
    return _NAMES.get(function)


def operator_names() -> list[str]:
    """All names, in order of the table."""
    return list(_FUNCTIONS)


def add_operator(name: str, *functions: Function) -> None:
    """Let these functions be the operator `name`; a function belongs to one operator."""
    for function in functions:
        if not callable(function):
            raise RegistryError(f"operator {name!r}: expected functions, got {function!r}.")
        owner = _NAMES.get(function, name)
        if owner != name:
            raise RegistryError(
                f"operator {name!r}: {getattr(function, '__name__', function)} is {owner!r}"
                " already."
            )
    _FUNCTIONS[name] = tuple(dict.fromkeys((*_FUNCTIONS.get(name, ()), *functions)))
    _NAMES.update(dict.fromkeys(functions, name))
    _IN_PLACE.update(_in_place(functions))


def works_in_place(function: Function) -> bool:
    """Whether it changes its first argument, by its name: `add_`, `__iadd__`."""
    return function in _IN_PLACE
