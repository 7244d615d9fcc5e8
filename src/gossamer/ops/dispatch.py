# SPDX-License-Identifier: Apache-2.0
"""Finds the implementation of an operation on a format; a miss is dense, counted, never silent.

An op is registered as a function that prepares one weight: it packs what it needs once and returns
a callable `(x, bias, activation) -> y`.
"""

import contextlib
import contextvars
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from gossamer.errors import DenseFallback, InputError, KernelMissing, RegistryError
from gossamer.formats import unpack
from gossamer.formats.base import SparseTensor
from gossamer.ops.out_of_memory import names_memory
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


PRECISIONS = ("fp32", "bf16", "int8", "int4")


@dataclass(frozen=True)
class Kernel:
    """One way to run an operation on the weights it accepts.

    Args:
        name: as `explain` shows it and the cost table files it.
        accepts: whether this kernel can run a weight; cheap, looks at format, pattern and shape.
        prepare: packs a weight it accepts.
        precision: "fp32" if results are those of fp32 arithmetic. The others are lossy and run only
            where the user allowed them.
        max_tokens: more activation rows than this are not worth a measurement; None = any number.
        is_offered: whether this CPU has the instructions that make it worth a measurement; it runs
            without them too.
    """

    name: str
    accepts: Callable[[SparseTensor], bool]
    prepare: Prepare
    precision: str = "fp32"
    max_tokens: int | None = None
    is_offered: Callable[[], bool] = lambda: True

    def __post_init__(self) -> None:
        where = f"packing a weight for kernel {self.name!r}"
        object.__setattr__(self, "prepare", names_memory(where, "Free memory.")(self.prepare))


# The plug-in axis: one kernel per format, which runs any weight in it.
LINEAR: Registry[Kernel] = Registry("linear op for a format", _STUB)
_OPS = {"linear": LINEAR}
# Built-in kernels beside it, for weights with a structure, few tokens or a lower precision.
_KERNELS: dict[str, list[Kernel]] = {"linear": []}

_strict: contextvars.ContextVar[bool] = contextvars.ContextVar("gossamer_strict", default=False)
_fallbacks: Counter[str] = Counter()


@dataclass(frozen=True)
class Prepared:
    """A weight ready to run: the callable and the name of the kernel behind it."""

    run: Run
    kernel: str


def ops_table(op: str) -> Registry[Kernel]:
    """The registry of one operation."""
    if op not in _OPS:
        raise RegistryError(f"no operation is called {op!r}; known: {', '.join(_OPS)}.")
    return _OPS[op]


def add_kernels(op: str, kernels: Iterable[Kernel]) -> None:
    """Let these run `op` too wherever they accept a weight."""
    _KERNELS[op].extend(kernels)


def built_in_kernels(op: str) -> tuple[Kernel, ...]:
    """The kernels beside those of the formats, in the order they were added."""
    return tuple(_KERNELS[op])


def kernel_names(op: str) -> tuple[str, ...]:
    """Every kernel of `op`, each once."""
    return tuple(dict.fromkeys(kernel.name for kernel in (*ops_table(op), *_KERNELS[op])))


def allowed_precisions(lowest: str) -> tuple[str, ...]:
    """Those a kernel may compute in if `lowest` is asked for, highest first."""
    if lowest not in PRECISIONS:
        raise InputError(
            f"precision must be one of {', '.join(PRECISIONS)}; got {lowest!r}. It is the lowest"
            " precision that kernels may compute in."
        )
    return PRECISIONS[: PRECISIONS.index(lowest) + 1]


def candidates(op: str, sparse: SparseTensor, precision: str = "fp32") -> tuple[Kernel, ...]:
    """Every kernel that can run this weight at `precision` or a higher one.

    The kernel of its format comes first; empty if there is none at all.
    """
    allowed = allowed_precisions(precision)
    table = ops_table(op)
    found = [table.get(sparse.format)] if sparse.format in table else []
    found += [k for k in _KERNELS[op] if k.is_offered() and k.accepts(sparse)]
    return tuple(kernel for kernel in found if kernel.precision in allowed)


def prepare(op: str, sparse: SparseTensor, where: str = "weight") -> Prepared:
    """The implementation of `op` for this weight, or a counted dense fallback.

    Raises KernelMissing under `strict()`.
    """
    table = ops_table(op)
    if sparse.format in table:
        kernel = table.get(sparse.format)
        return Prepared(kernel.prepare(sparse), kernel.name)
    report_missing(op, sparse.format, where)
    weight, _ = unpack(sparse)
    return Prepared(_dense_run(weight), "dense")


def report_missing(op: str, format_name: str, where: str) -> None:
    """Count a format that no kernel runs; under `strict()` an error with the stub to write."""
    reason = f"no {op} kernel for format {format_name!r}"
    if _strict.get():
        raise KernelMissing(
            f"{where}: {reason}. Registered: {', '.join(ops_table(op).names())}."
            f" To add one:\n\n{_STUB.replace('{name}', format_name)}"
        )
    report_fallback(where, reason)


def report_fallback(where: str, reason: str) -> None:
    """Count a fall back to dense; an error under `strict()`."""
    if _strict.get():
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
