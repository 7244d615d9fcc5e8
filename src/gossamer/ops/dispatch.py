# SPDX-License-Identifier: Apache-2.0
"""Finds the implementation of an operation on a format; a miss is dense, counted, never silent.

An op is registered as a function that prepares one weight: it packs what it needs once and returns
a callable `(x, bias, activation) -> y`.
"""

import contextlib
import contextvars
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from gossamer.errors import DenseFallback, KernelMissing, RegistryError
from gossamer.formats import unpack
from gossamer.formats.base import SparseTensor
from gossamer.registry import Registry

Run = Callable[[torch.Tensor, torch.Tensor | None, str], torch.Tensor]
Prepare = Callable[[SparseTensor], Run]

_STUB = """\
@gossamer.register.op("linear", "{name}")
def linear_{name}(sparse):                      # gossamer.formats.base.SparseTensor
    weight, mask = gossamer.formats.unpack(sparse)   # replace: pack what your kernel reads, once
    def run(x, bias, activation):               # x [..., in] -> y [..., out]
        ...
    return run
"""


@dataclass(frozen=True)
class Kernel:
    """One way to run an operation on the weights it accepts.

    Args:
        name: as `explain` shows it and the cost table files it.
        accepts: whether this kernel can run a weight; cheap, looks at format, pattern and shape.
        prepare: packs a weight it accepts.
        precision: "fp32" if results are those of fp32 arithmetic; anything else is lossy and runs
            only where the user asked for it: "bf16", "int8", "int4".
    """

    name: str
    accepts: Callable[[SparseTensor], bool]
    prepare: "Prepare"
    precision: str = "fp32"


LINEAR: Registry[Prepare] = Registry("linear op for a format", _STUB)
_OPS = {"linear": LINEAR}

_strict: contextvars.ContextVar[bool] = contextvars.ContextVar("gossamer_strict", default=False)
_fallbacks: Counter[str] = Counter()


@dataclass(frozen=True)
class Prepared:
    """A weight ready to run: the callable and the name of the kernel behind it."""

    run: Run
    kernel: str


def ops_table(op: str) -> Registry[Prepare]:
    """The registry of one operation."""
    if op not in _OPS:
        raise RegistryError(f"no operation is called {op!r}; known: {', '.join(_OPS)}.")
    return _OPS[op]


def prepare(op: str, sparse: SparseTensor, where: str = "weight") -> Prepared:
    """The implementation of `op` for this weight, or a counted dense fallback.

    Raises KernelMissing under `strict()`.
    """
    table = ops_table(op)
    if sparse.format in table:
        run = table.get(sparse.format)(sparse)
        return Prepared(run, getattr(run, "kernel", f"{op}/{sparse.format}"))
    report_fallback(where, f"no {op} kernel for format {sparse.format!r}", _STUB, sparse.format)
    weight, _ = unpack(sparse)
    return Prepared(_dense_run(weight), "dense")


def report_fallback(where: str, reason: str, stub: str = "", name: str = "") -> None:
    """Count a fall back to dense; an error under `strict()`."""
    if _strict.get():
        if stub:
            raise KernelMissing(
                f"{where}: {reason}. Registered: {', '.join(LINEAR.names())}."
                f" To add one:\n\n{stub.replace('{name}', name)}"
            )
        raise DenseFallback(f"{where}: {reason}; this is an error under gossamer.strict().")
    _fallbacks[f"{where}: {reason}"] += 1


def fallbacks() -> dict[str, int]:
    """How often work fell back to dense in this process, by place and reason."""
    return dict(_fallbacks)


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """Inside this context a fall back to dense is an error instead of a counted event."""
    token = _strict.set(True)
    try:
        yield
    finally:
        _strict.reset(token)


def activate(y: torch.Tensor, activation: str) -> torch.Tensor:
    """Apply a named activation, as the fused kernels do."""
    if activation == "relu":
        return F.relu(y)
    if activation == "gelu":
        return F.gelu(y)
    if activation == "silu":
        return F.silu(y)
    return y


def _dense_run(weight: torch.Tensor) -> Run:
    def run(x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
        return activate(F.linear(x, weight, bias), activation)

    return run
