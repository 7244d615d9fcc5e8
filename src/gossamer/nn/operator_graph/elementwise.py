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


def _power(a: Tensor, b: Tensor) -> Tensor:
    return torch.pow(a, b).to(a.dtype)


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


def _identity(x: Tensor) -> Tensor:
    return x


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


# Elementwise with broadcasting: what comes out has the broadcast shape of what goes in.
BROADCASTING: dict[str, Callable[..., Any]] = {
    "Add": lambda a, b: torch.add(a, b),
    "Sub": lambda a, b: torch.sub(a, b),
    "Mul": lambda a, b: torch.mul(a, b),
    "Div": _divide,
    "Pow": _power,
    "Mod": _modulo,
    "Equal": lambda a, b: torch.eq(a, b),
    "Less": lambda a, b: torch.lt(a, b),
    "LessOrEqual": lambda a, b: torch.le(a, b),
    "Greater": lambda a, b: torch.gt(a, b),
    "GreaterOrEqual": lambda a, b: torch.ge(a, b),
    "And": lambda a, b: torch.logical_and(a, b),
    "Or": lambda a, b: torch.logical_or(a, b),
    "Xor": lambda a, b: torch.logical_xor(a, b),
    "Where": lambda condition, a, b: torch.where(condition, a, b),
    "Max": _folded(torch.maximum),
    "Min": _folded(torch.minimum),
    "Sum": _folded(torch.add),
    "Clip": _clip,
}
UNARY: dict[str, Callable[..., Any]] = {
    "Abs": lambda x: torch.abs(x),
    "Cast": _cast,
    "Ceil": lambda x: torch.ceil(x),
    "Dropout": _dropout,
    "Elu": _elu,
    "Erf": lambda x: torch.erf(x),
    "Exp": lambda x: torch.exp(x),
    "Floor": lambda x: torch.floor(x),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda x: F.hardswish(x),
    "Identity": _identity,
    "IsNaN": lambda x: torch.isnan(x),
    "LeakyRelu": _leaky_relu,
    "Log": lambda x: torch.log(x),
    "Neg": lambda x: torch.neg(x),
    "Not": lambda x: torch.logical_not(x),
    "Reciprocal": lambda x: torch.reciprocal(x),
    "Relu": lambda x: torch.relu(x),
    "Round": lambda x: torch.round(x),
    "Sigmoid": lambda x: torch.sigmoid(x),
    "Sign": lambda x: torch.sign(x),
    "Softplus": lambda x: torch.nn.functional.softplus(x),
    "Sqrt": lambda x: torch.sqrt(x),
    "Tanh": lambda x: torch.tanh(x),
}
