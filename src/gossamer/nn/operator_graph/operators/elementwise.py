# SPDX-License-Identifier: Apache-2.0
"""Operators on one element at a time, with ONNX semantics where torch differs."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.errors import InputError

# Codes of TensorProto.DataType that have a torch type here.
DTYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}


def _divide(a: Tensor, b: Tensor) -> Tensor:
    whole = not (a.is_floating_point() or b.is_floating_point())
    return torch.div(a, b, rounding_mode="trunc") if whole else torch.div(a, b)


def _modulo(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


def _cast(x: Tensor, *, to: int, saturate: int = 1) -> Tensor:
    if to not in DTYPES:
        raise InputError(f"Cast: data type {to} is none of {sorted(DTYPES)}.")
    return x.to(DTYPES[to])


def _clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None, /) -> Tensor:
    if low is not None:
        x = torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return F.gelu(x, approximate=approximate)


def _leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return F.leaky_relu(x, alpha)


def _elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.elu(x, alpha)


def _hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return (alpha * x + beta).clamp(0, 1)


def _dropout(
    x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None, /, *, seed: int = 0
) -> Tensor:
    if training is not None and bool(training):
        raise InputError("Dropout: its training_mode is on; export the model for inference.")
    return x


def _folded(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def over_all(first: Tensor, /, *others: Tensor) -> Tensor:
        return reduce(function, others, first)

    return over_all


# Functions of torch say nothing of the inputs they take.
def _of_one(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda x: function(x)


def _of_two(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda a, b: function(a, b)


_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Ceil": torch.ceil,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": F.hardswish,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Softplus": F.softplus,
    "Sqrt": torch.sqrt,
    "Tanh": torch.tanh,
}
_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Sub": torch.sub,
    "Xor": torch.logical_xor,
}
# Elementwise with broadcasting: what comes out has the broadcast shape of what goes in.
BROADCASTING: dict[str, Callable[..., Any]] = {
    **{name: _of_two(function) for name, function in _TWO.items()},
    "Div": _divide,
    "Pow": lambda a, b: torch.pow(a, b).to(a.dtype),
    "Mod": _modulo,
    "Where": lambda condition, a, b: torch.where(condition, a, b),
    "Max": _folded(torch.maximum),
    "Min": _folded(torch.minimum),
    "Sum": _folded(torch.add),
    "Clip": _clip,
}
UNARY: dict[str, Callable[..., Any]] = {
    **{name: _of_one(function) for name, function in _ONE.items()},
    "Cast": _cast,
    "Dropout": _dropout,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "Identity": lambda x: x,
    "LeakyRelu": _leaky_relu,
}
