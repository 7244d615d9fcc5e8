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


def _cast(x: Tensor, *, to: int, saturate: int = 1) -> Tensor:
    if to not in DTYPES:
        raise InputError(f"Cast: data type {to} is none of {sorted(DTYPES)}.")
    return x.to(DTYPES[to])


def _clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None, /) -> Tensor:
    if low is not None:
        x = torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


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


# Of one element, and of two with broadcasting. Functions of torch do not say what they take.
ONE: dict[str, Callable[..., Any]] = {
    name: getattr(torch, name.lower())
    for name in (
        *("Abs", "Ceil", "Erf", "Exp", "Floor", "IsNaN", "Log", "Neg", "Reciprocal", "Relu"),
        *("Round", "Sigmoid", "Sign", "Sqrt", "Tanh"),
    )
} | {"HardSwish": F.hardswish, "Not": torch.logical_not, "Softplus": F.softplus}
TWO: dict[str, Callable[..., Any]] = {
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
# The same, for functions that say what they take.
BROADCASTING: dict[str, Callable[..., Any]] = {
    "Div": _divide,
    "Pow": lambda a, b: torch.pow(a, b).to(a.dtype),
    "Mod": lambda a, b, *, fmod=0: torch.fmod(a, b) if fmod else torch.remainder(a, b),
    "Where": lambda condition, a, b: torch.where(condition, a, b),
    "Max": _folded(torch.maximum),
    "Min": _folded(torch.minimum),
    "Sum": _folded(torch.add),
    "Clip": _clip,
}
UNARY: dict[str, Callable[..., Any]] = {
    "Cast": _cast,
    "Dropout": _dropout,
    "Elu": lambda x, *, alpha=1.0: F.elu(x, alpha),
    "Gelu": lambda x, *, approximate="none": F.gelu(x, approximate=approximate),
    "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1),
    "Identity": lambda x: x,
    "LeakyRelu": lambda x, *, alpha=0.01: F.leaky_relu(x, alpha),
}
