# SPDX-License-Identifier: Apache-2.0
"""The list of kernels of each operation, asked by all who run weights; a miss is never silent.

A kernel says which problems it accepts and packs a weight once into a callable
`(x, bias, activation) -> y`. An engine, which runs a whole model in one native call, asks the same
list; the kernels that can pack a weight for its call say so (`Kernel.engines`).
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gossamer.errors import InputError, KernelMissing, RegistryError
from gossamer.formats import SparseMatrix
from gossamer.ops.fallback import is_strict, report_fallback
from gossamer.ops.without_native import warn_missing, why_missing
from gossamer.out_of_memory import names_memory
from gossamer.registry import Registry

Run = Callable[[torch.Tensor, torch.Tensor | None, str], torch.Tensor]

_STUB = """\
@gossamer.register.op("linear", "{name}")
def linear_{name}(matrix):                      # gossamer.formats.SparseMatrix
    weight = matrix.dense()                     # replace: pack what your kernel reads, once
    def run(x, bias, activation):               # x [..., in] -> y [..., out]
        ...
    return run
"""


PRECISIONS = ("fp32", "bf16", "int8", "int4")


@dataclass(frozen=True)
class Problem:
    """A weight that something has to run.

    Attributes:
        matrix: float32 on the CPU; of a table, its `Rows`.
        precision: the lowest that a kernel may compute in.
        tokens: activation rows; None for any number.
        geometry: of a convolution; None for a product.
        image: height and width of a convolution's images, where they are fixed.
        scale_group: kept int4 values that share a scale.
        engine: whose native call the weight becomes a part of; empty for a layer of its own.
        bias: what such a call adds behind the product.
    """

    matrix: Any
    precision: str = "fp32"
    tokens: int | None = None
    geometry: Any = None
    image: tuple[int, int] | None = None
    scale_group: int = 32
    engine: str = ""
    bias: torch.Tensor | None = None


@dataclass(frozen=True)
class Kernel:
    """One way to run an operation.

    Args:
        name: as `explain` shows it and the cost table files it.
        pack: makes a weight it accepts into what is called.
        accepts: whether this kernel can run a problem; cheap, looks at pattern, shape and geometry.
        precision: "fp32" if results are those of fp32 arithmetic. The others are lossy and run only
            where the user allowed them.
        max_tokens: more activation rows than this are not worth a measurement; None = any number.
        is_offered: whether this CPU has the instructions that make it worth a measurement; it runs
            without them too.
        is_plug_in: whether it was registered by somebody else.
        engines: names of engines, and what packs a weight for the native call of each.
    """

    name: str
    pack: Callable[[Problem], Any]
    accepts: Callable[[Problem], bool] = lambda problem: True
    precision: str = "fp32"
    max_tokens: int | None = None
    is_offered: Callable[[], bool] = lambda: True
    is_plug_in: bool = False
    engines: Mapping[str, Callable[[Problem], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"packing a weight for kernel {self.name!r}"
        object.__setattr__(self, "pack", names_memory(where, "Free memory.")(self.pack))

    @classmethod
    def of_matrix(
        cls, name: str, pack: Callable[[SparseMatrix], Run], *args: Any, **more: Any
    ) -> "Kernel":
        """A kernel whose `pack` needs to know nothing but the weight."""
        return cls(name, lambda problem: pack(problem.matrix), *args, **more)

    def suits(self, tokens: int) -> bool:
        """Whether it is worth a measurement at this number of tokens."""
        return self.max_tokens is None or tokens <= self.max_tokens

    def native_weight(self, problem: Problem) -> Any:
        """The weight as the native call of the problem's engine takes it."""
        return self.engines[problem.engine](problem)


# One list per operation: the built-in kernels, in the order of their families, and plug-ins.
KERNELS: dict[str, Registry[Kernel]] = {
    op: Registry(f"{op} kernel", _STUB.replace("linear", op)) for op in ("linear", "conv", "table")
}


def kernel_list(op: str) -> Registry[Kernel]:
    """The kernels of one operation: the built-in ones of its room, and plug-ins."""
    if op not in KERNELS:
        raise RegistryError(f"no operation is called {op!r}; known: {', '.join(KERNELS)}.")
    importlib.import_module(f"gossamer.ops.{op}")  # it adds its own when it is first imported
    return KERNELS[op]


def add_kernels(op: str, kernels: Iterable[Kernel]) -> None:
    """Let these run `op` wherever they accept a problem."""
    for kernel in kernels:
        KERNELS[op].add(kernel.name, kernel)


def kernels_for(op: str, problem: Problem) -> tuple[Kernel, ...]:
    """Every kernel that accepts a problem, in the order of the list."""
    lowest = problem.precision
    if lowest not in PRECISIONS:
        raise InputError(
            f"precision must be one of {', '.join(PRECISIONS)}; got {lowest!r}. It is the lowest"
            " precision that kernels may compute in."
        )
    allowed = PRECISIONS[: PRECISIONS.index(lowest) + 1]
    native = why_missing() is None or warn_missing()
    return tuple(
        kernel
        for kernel in kernel_list(op)
        if kernel.precision in allowed
        and (native or kernel.is_plug_in)
        and (not problem.engine or problem.engine in kernel.engines)
        and (problem.tokens is None or kernel.suits(problem.tokens))
        and kernel.is_offered()
        and kernel.accepts(problem)
    )


def engine_kernel(op: str, problem: Problem, where: str) -> Kernel:
    """The kernel that packs a weight for an engine; KernelMissing if there is none.

    It has the lowest precision that is allowed, which is what was asked for. Of several the last
    one is taken: kernels that use a structure of the weight stand behind those for any weight.
    """
    kernels = kernels_for(op, problem)
    if not kernels:
        known = [kernel.name for kernel in kernel_list(op) if problem.engine in kernel.engines]
        raise KernelMissing(
            f"{where}: no {op} kernel packs this {problem.matrix.pattern} weight for the native"
            f" call {problem.engine!r} at {problem.precision}. Kernels that pack for it:"
            f" {', '.join(known) or 'none'}."
        )
    return max(reversed(kernels), key=lambda kernel: PRECISIONS.index(kernel.precision))


def outside_kernels(op: str, problem: Problem) -> tuple[str, ...]:
    """Plug-ins that could run a weight as a layer, but not inside the engine it is for."""
    alone = kernels_for(op, replace(problem, engine=""))
    return tuple(k.name for k in alone if k.is_plug_in and problem.engine not in k.engines)


def report_missing(op: str, pattern: str, where: str) -> None:
    """Count a weight that no kernel runs; under `strict()` an error with the stub to write."""
    reason = f"no {op} kernel for pattern {pattern!r}"
    if is_strict():
        raise KernelMissing(
            f"{where}: {reason}. Registered: {', '.join(kernel_list(op).names())}."
            f" To add one:\n\n{_STUB.replace('linear', op).replace('{name}', 'mine')}"
        )
    report_fallback(where, reason)
