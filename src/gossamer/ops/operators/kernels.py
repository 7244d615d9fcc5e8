# SPDX-License-Identifier: Apache-2.0
"""Which function computes an operator for formats of its inputs, forward and backward.

A forward kernel is found by operator, formats of the inputs and format of the output; a backward
kernel by operator, formats of the inputs and format of the gradient. Formats of the inputs are
those of its tensors in order, without `dense` at the end: `("csr",)` is any call whose first tensor
is compressed and whose others are dense.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gossamer.errors import RegistryError
from gossamer.ops.operators.compressed import format_name, tensors_in
from gossamer.ops.operators.table import operator_names
from gossamer.ops.sparsifiers import Sparsifier

__all__ = ["BACKWARD", "FORWARD", "Call", "add_backward", "add_forward", "kernel_name"]

Formats = tuple[str, ...]
Key = tuple[str, Formats, str]
Kernel = Callable[..., Any]


@dataclass
class Call:
    """One call of an operator, as its kernels see it.

    Attributes:
        args: positional arguments; tensors in them may be compressed.
        kwargs: named ones.
        inline: sparsifier that the kernel applies to what it computes.
        saved: what the forward kernel leaves for the backward kernel.
        needs: of the tensors in `args` and then in `kwargs`, which need a gradient.
        function: the function of torch that was called.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inline: Sparsifier
    function: Callable[..., Any]
    saved: tuple[Any, ...] = ()
    needs: tuple[bool, ...] = ()

    def tensors(self) -> list[torch.Tensor]:
        """All tensors among the arguments, in order."""
        return list(tensors_in((*self.args, *self.kwargs.values())))


@dataclass(frozen=True)
class OperatorKernel:
    """A forward kernel and what it can do.

    Attributes:
        run: called with the call and its arguments; gives a tensor, or a compressed one.
        accepts: whether it can compute a call.
    """

    run: Kernel
    accepts: Callable[[Call], bool] = field(default=lambda call: True)


FORWARD: dict[Key, OperatorKernel] = {}
BACKWARD: dict[Key, Kernel] = {}


def _key(operator: str, inputs: Sequence[str], other: str) -> Key:
    if operator not in operator_names():
        raise RegistryError(
            f"no operator is called {operator!r}; known: {', '.join(operator_names())}. Name"
            f" functions of torch first: gossamer.register.operator({operator!r}, torch....)."
        )
    formats = list(inputs)
    while formats and formats[-1] == "dense":
        formats.pop()
    return operator, tuple(formats), other


def add_forward(
    operator: str,
    inputs: Sequence[str] = (),
    output: str = "dense",
    accepts: Callable[[Call], bool] = lambda call: True,
) -> Callable[[Kernel], Kernel]:
    """Decorate the function that computes an operator for these formats.

    It is called as `kernel(call, *args, **kwargs)` with the arguments of the operator and returns
    the output in the format named, `call.inline` applied. What its backward needs goes into
    `call.saved`.
    """
    key = _key(operator, inputs, output)

    def add(kernel: Kernel) -> Kernel:
        _only_once(FORWARD, key, "forward")[key] = OperatorKernel(kernel, accepts)
        return kernel

    return add


def add_backward(
    operator: str, inputs: Sequence[str] = (), gradient: str = "dense"
) -> Callable[[Kernel], Kernel]:
    """Decorate the function that computes the gradients of an operator for these formats.

    It is called as `kernel(call, gradient)`, after a forward kernel for the same inputs, and
    returns one gradient per tensor of the call, None where `call.needs` says that nobody wants it.
    That of a compressed tensor is the gradient of its values.
    """
    key = _key(operator, inputs, gradient)

    def add(kernel: Kernel) -> Kernel:
        _only_once(BACKWARD, key, "backward")[key] = kernel
        return kernel

    return add


def _only_once(table: dict[Key, Any], key: Key, direction: str) -> dict[Key, Any]:
    if key in table:
        raise RegistryError(f"{direction} kernel {kernel_name(key)} is registered already.")
    return table


def kernel_name(key: Key) -> str:
    """As messages and `check_op` name it: `linear csr->dense`."""
    operator, inputs, other = key
    return f"{operator} {','.join(inputs) or 'dense'}->{other}"


def formats_of(call: Call) -> Formats:
    """Formats of the tensors of a call, without `dense` at the end."""
    formats = [format_name(x) for x in call.tensors()]
    while formats and formats[-1] == "dense":
        formats.pop()
    return tuple(formats)


def stub(key: Key) -> str:
    """What to write for a missing kernel."""
    operator, inputs, other = key
    return (
        f"@gossamer.register.forward({operator!r}, inputs={inputs!r}, output={other!r})\n"
        f"def {operator}(call, *args, **kwargs):      # compressed ones are CompressedTensor\n"
        "    call.saved = args\n    ...\n"
        f"@gossamer.register.backward({operator!r}, inputs={inputs!r}, gradient=...)\n"
        f"def {operator}_backward(call, gradient):\n    ...               # one for each tensor\n"
    )
