# SPDX-License-Identifier: Apache-2.0
"""Custom ops: what tracers, transforms, graphs and torch.onnx.export get to see of gossamer.

`define_op` makes a function an op and `call_op` calls it; `Handles` are the numbers that stand for
packed weights in it. Plain calls of native code go past all this (`ops/addresses.py`).

Tracers, transforms and tensors of other classes come through ops (ops/addresses.py). What they
cannot do with an op of gossamer is told in gossamer's words.

Custom ops take tensors and numbers only, so a packed weight goes through them as a number. A graph
can outlive its model, be saved, and be loaded in another process: a number must never come to mean
something else. So numbers are counted, never taken from addresses, and each process starts at a
random place. The table keeps nothing alive: a graph whose model is gone is told so.

A compact layer goes into the file as it is, kept values and packed mask, with the few operators of
ONNX that make a dense weight of them; engines do that once, when they load it. A packed layer has
no such form.

Legend: R rows (outputs), K columns (inputs).
"""

import functools
import itertools
import os
import secrets
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch._C._functorch import TransformType, get_interpreter_stack, is_functorch_wrapped_tensor
from torch._library.custom_ops import CustomOpDef
from torch.autograd import forward_ad

from gossamer.errors import InputError, KernelError
from gossamer.ops.addresses import NO_TANGENT, has_tangent, is_watched
from gossamer.out_of_memory import names_memory

__all__ = [
    "NO_GRADIENTS",
    "Handles",
    "call_op",
    "define_op",
    "expand_for_onnx",
    "is_onnx_export",
    "is_traced",
    "refuse_onnx",
]


def is_traced(x: torch.Tensor) -> bool:
    """Whether somebody records what is computed, or a compiler or torch.func is at work on x."""
    return (
        torch.compiler.is_compiling()
        or is_watched()
        or not isinstance(x, torch.Tensor)
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def is_onnx_export() -> bool:
    """Whether torch.onnx.export is running."""
    # Asking for it takes a microsecond; the exporter does one of the others too.
    return (torch.compiler.is_compiling() or is_watched()) and torch.onnx.is_in_onnx_export()


def expand_for_onnx(
    values: torch.Tensor, mask_bits: torch.Tensor, num_columns: int
) -> torch.Tensor:
    """The dense weight [R, K] of kept values by operators that ONNX has."""
    num_rows = mask_bits.shape[0]
    powers = 2 ** torch.arange(8, dtype=torch.int32, device=mask_bits.device)
    bits = mask_bits.to(torch.int32)[:, :, None].div(powers, rounding_mode="floor") % 2
    kept = bits.reshape(num_rows, -1)[:, :num_columns].reshape(-1)
    # Position 0 of the padded values is what is not kept.
    places = kept.cumsum(0, dtype=torch.int32) * kept
    return F.pad(values, (1, 0)).index_select(0, places).view(num_rows, num_columns)


def refuse_onnx(where: str) -> None:
    """InputError if torch.onnx.export is running."""
    if is_onnx_export():
        raise InputError(
            f"{where}: a compiled model is for this machine and has no ONNX form. Export the model"
            " it was compiled from; or write a dense one with gossamer convert MODEL DENSE --format"
            " dense, and export that."
        )


NO_GRADIENTS = (
    "a compiled model is for inference and gives no gradients. Call it under"
    " torch.inference_mode(), or train the model it was compiled from."
)
# What torch.func.grad and its kin say to the derivative of any custom op.
_NO_FUNCTION = "In order to use an autograd.Function with functorch transforms"


def define_op(
    name: str,
    where: str,
    fake: Callable[..., Any] | None = None,
    mutates: Iterable[str] = (),
    advice: str = "Run fewer tokens or images at a time, or free memory.",
    *,
    has_gradients: bool = True,
) -> Callable[[Callable[..., Any]], CustomOpDef]:
    """Make a function the custom op `gossamer::name`.

    Args:
        name: of the op.
        where: begins the messages of what the op refuses.
        fake: takes the op's arguments and gives a tensor of the result's shape and dtype; not
            needed by ops without a result.
        mutates: names of arguments that the op changes.
        advice: what to do where memory does not suffice.
        has_gradients: False for an op that is for inference only and says so when it is called.
    """

    def define(function: Callable[..., Any]) -> CustomOpDef:
        named = names_memory(where, advice)(function)

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:
            # torch would drop tangents.
            _refuse_tangents(where, (*args, *kwargs.values()))
            return named(*args, **kwargs)

        op = torch.library.custom_op(f"gossamer::{name}", body, mutates_args=mutates)
        if fake is not None:
            op.register_fake(fake)
        if not has_gradients:
            op.register_autograd(lambda ctx, grad: None, setup_context=_refuse_gradients)
        return op

    return define


def call_op(op: Callable[..., Any], where: str, *args: Any) -> torch.Tensor:
    """The result of a custom op; `where` begins the message of what is refused."""
    if not torch.compiler.is_compiling():
        _refuse_tangents(where, args)
    try:
        y: torch.Tensor = op(*args)
    except (RuntimeError, TypeError) as error:
        if not isinstance(error, NotImplementedError | TypeError) and _NO_FUNCTION not in str(
            error
        ):
            raise
        kinds = sorted({type(arg).__name__ for arg in args if isinstance(arg, torch.Tensor)})
        raise InputError(
            f"{where}: cannot be computed for {' and '.join(kinds)} here ({error}). Pass plain"
            " tensors outside of torch.func, or run the dense model (to_dense)."
        ) from error
    return y


def _refuse_gradients(ctx: object, inputs: tuple[object, ...], output: object) -> None:
    """As `setup_context` of an op without derivatives: say so at once, not in the backward."""
    raise InputError(NO_GRADIENTS)


def _refuse_tangents(where: str, args: tuple[Any, ...]) -> None:
    if forward_ad._current_level < 0:
        return
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    # torch.func holds tangents in wrappers, which an op no longer sees.
    is_jvp = any(one.key() == TransformType.Jvp for one in get_interpreter_stack() or ())
    if any((is_jvp and is_functorch_wrapped_tensor(t)) or has_tangent(t) for t in tensors):
        raise InputError(f"{where}: {NO_TANGENT}")


T = TypeVar("T")

_START_BITS = 62  # numbers are int64 in a graph; counting on from here cannot overflow
_numbers = itertools.count(secrets.randbits(_START_BITS))


def _start_elsewhere() -> None:
    global _numbers
    _numbers = itertools.count(secrets.randbits(_START_BITS))


# Else parent and child would go on to give the same numbers to different things.
os.register_at_fork(after_in_child=_start_elsewhere)


class Handles(Generic[T]):
    """Things of one kind by their numbers, for as long as somebody else holds them.

    Args:
        what: names the op in the error of `find`.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._things: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, thing: T) -> int:
        """A number that no other thing has had or will have."""
        number = next(_numbers)
        self._things[number] = thing
        return number

    def find(self, number: int) -> T:
        """What a number stands for; KernelError if it is gone or was of another process."""
        thing = self._things.get(number)
        if thing is None:
            raise KernelError(
                f"{self._what}: what this graph stands for no longer exists: its compiled model"
                " is gone, or was in another process. A graph does not hold packed weights. Keep"
                " the compiled model as long as the graph; to go to another process, save it with"
                " gossamer.save, and load and compile it there, or export the compact model."
            )
        return thing
