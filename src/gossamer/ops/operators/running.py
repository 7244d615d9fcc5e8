# SPDX-License-Identifier: Apache-2.0
"""An operator is computed for the formats of its inputs, or densely, which is counted.

One call goes forward through a kernel found by (operator, formats of inputs -> temporary format),
and backward through one found by (operator, formats of inputs, format of the gradient). Where there
is none, inputs are made dense and torch computes: reported, and an error under `strict()`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from gossamer.errors import InputError, KernelMissing
from gossamer.ops.addresses import is_watched
from gossamer.ops.fallback import is_strict, report_fallback
from gossamer.ops.operators.compressed import (
    TENSOR_FORMATS,
    CompressedTensor,
    TensorFormat,
    densified,
    format_name,
    has_compressed,
    tensor_format,
)
from gossamer.ops.operators.kernels import (
    BACKWARD,
    FORWARD,
    Call,
    Key,
    OperatorKernel,
    formats_of,
    kernel_name,
    stub,
)
from gossamer.ops.operators.table import operator_of, works_in_place
from gossamer.ops.sparsifiers import Sparsifier, parse_sparsifier, sparsify, sparsify_gradient

__all__ = ["Plan", "convert", "is_recorded", "run_function", "run_operator", "told_dense"]


@dataclass(frozen=True)
class Plan:
    """What is asked of one output.

    Attributes:
        where: begins the words about a fallback.
        inline: sparsifier inside the operator.
        temporary: format of what the operator gives; None: as its kernel for the inputs likes it.
        gradient: sparsifier of the gradient that comes back, None: the output's zeros.
        gradient_format: of the gradient as the backward kernel gets it.
    """

    where: str
    inline: Sparsifier
    temporary: str | None = None
    gradient: Sparsifier | None = None
    gradient_format: str = "dense"


def run_function(function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    """A function of torch with compressed arguments, that no rule is about."""
    name = getattr(function, "__name__", str(function))
    if works_in_place(function) or (name.endswith("_") and not name.endswith("__")):
        raise InputError(
            f"{name}: a compressed tensor cannot be changed in place. Use the function without"
            " the underscore, or a dense format."
        )
    operator = operator_of(function)
    if operator is None or name.startswith("__r"):
        _report(name, f"{name} has no kernel for compressed tensors", "")
        return function(*densified(tuple(args)), **densified(dict(kwargs)))
    return run_operator(operator, function, args, kwargs, Plan(operator, _KEEP_ALL))


_KEEP_ALL = parse_sparsifier("keep-all")


def run_operator(
    operator: str, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], plan: Plan
) -> Any:
    """The output of an operator in the temporary format, zeros inline."""
    call = Call(tuple(args), dict(kwargs), plan.inline, function)
    found = _forward_kernel(operator, call, plan.temporary)
    if found is None:
        return _dense(operator, call, plan)
    key, kernel = found
    gradient_format = plan.gradient_format if key[2] == "dense" else key[2]
    back = operator, key[1], gradient_format
    wants = torch.is_grad_enabled() and any(values_of(x).requires_grad for x in call.tensors())
    if wants and back not in BACKWARD:
        _report(plan.where, f"no backward kernel {_backward_name(back)}", stub(back))
    flat = [values_of(x) for x in call.tensors()]
    task = _Task(call, key, kernel, plan, back)
    y: torch.Tensor = _Run.apply(task, *flat)  # type: ignore[no-untyped-call]
    if task.made is None:
        return y
    return task.made.with_values(y)


def _forward_kernel(
    operator: str, call: Call, temporary: str | None
) -> tuple[Key, OperatorKernel] | None:
    formats = formats_of(call)
    wanted = ("dense", *TENSOR_FORMATS.names()) if temporary is None else (temporary,)
    for output in wanted:
        key = operator, formats, output
        kernel = FORWARD.get(key)
        if kernel is not None and kernel.accepts(call):
            return key, kernel
    return None


def _dense(operator: str, call: Call, plan: Plan) -> Any:
    """By torch: inputs dense, zeros in a pass of their own, then the temporary format."""
    key = operator, formats_of(call), plan.temporary or "dense"
    if has_compressed(call.tensors()) or plan.temporary not in (None, "dense"):
        _report(plan.where, f"no forward kernel {kernel_name(key)} for this call", stub(key))
    if plan.gradient_format != "dense":
        back = operator, key[1], plan.gradient_format
        _report(plan.where, f"no backward kernel {_backward_name(back)}", stub(back))
    y = call.function(*densified(call.args), **densified(call.kwargs))
    if not isinstance(y, torch.Tensor) or not y.is_floating_point():
        return y
    y = compress(sparsify(y, plan.inline), plan.temporary or "dense", plan.where)
    return y if plan.gradient is None else sparsify_gradient(y, plan.gradient)


def compress(y: torch.Tensor, name: str, where: str) -> torch.Tensor:
    """A dense tensor with zeros in a format; dense where the format cannot hold it, reported."""
    form = tensor_format(name)
    if form is None:
        return y
    if is_recorded():
        told_dense(where, name)
        return y
    if not form.accepts(y):
        _report(where, f"{name} cannot hold {y.dtype} of shape {list(y.shape)}", "")
        return y
    return CompressedTensor.of(y, y.detach() != 0, form)


def convert(y: torch.Tensor, name: str, where: str) -> torch.Tensor:
    """A tensor of any format in another one."""
    if format_name(y) == name:
        return y
    return compress(y.dense() if isinstance(y, CompressedTensor) else y, name, where)


def values_of(x: torch.Tensor) -> torch.Tensor:
    """What autograd sees of a tensor: of a compressed one its values."""
    return x.parts["values"] if isinstance(x, CompressedTensor) else x


def _backward_name(key: Key) -> str:
    operator, inputs, gradient = key
    return f"{operator} {','.join(inputs) or 'dense'} with a {gradient} gradient"


def _report(where: str, reason: str, advice: str) -> None:
    if is_strict() and advice:
        raise KernelMissing(f"{where}: {reason}. To add one:\n\n{advice}")
    report_fallback(where, reason)


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def told_dense(where: str, name: str) -> bool:
    """A format is not used while a graph is recorded: counted once, when it is made."""
    report_fallback(where, f"{name} has a size that depends on numbers, which no graph can have")
    return True


def is_recorded() -> bool:
    """Whether somebody records what is computed."""
    return torch.compiler.is_compiling() or is_watched()


@dataclass
class _Task:
    """A call on its way through autograd."""

    call: Call
    key: Key
    kernel: OperatorKernel
    plan: Plan
    back: Key
    made: CompressedTensor | None = None


class _Run(torch.autograd.Function):
    """Forward and backward kernel of one call; compressed tensors go through as their values."""

    @staticmethod
    def forward(ctx: Any, task: _Task, *flat: torch.Tensor) -> torch.Tensor:
        call = task.call
        call.needs = tuple(ctx.needs_input_grad[1:])
        args, kwargs = (
            _each(call.args, torch.Tensor.detach),
            _each(call.kwargs, torch.Tensor.detach),
        )
        y = task.kernel.run(call, *args, **kwargs)
        made = format_name(y) if isinstance(y, torch.Tensor) else type(y).__name__
        if made != task.key[2]:
            raise InputError(f"kernel {kernel_name(task.key)}: gave {made}.")
        if task.back not in BACKWARD:
            call.saved = args, kwargs
        # Through torch, so that a change in place is found in the backward.
        kept: list[torch.Tensor] = []
        ctx.saved = _each(call.saved, lambda x: _Slot(kept, x))
        ctx.save_for_backward(*kept)
        call.args, call.kwargs, call.saved = (), {}, ()
        ctx.task = task
        if isinstance(y, CompressedTensor):
            task.made = y
            y = y.parts["values"]
        out: torch.Tensor = y.view_as(y) if any(y is x for x in flat) else y
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        task: _Task = ctx.task
        call, plan, made = task.call, task.plan, task.made
        kept = ctx.saved_tensors
        call.saved = _each(ctx.saved, lambda slot: kept[slot.number])
        if made is not None:
            gradient: torch.Tensor = made.with_values(grad.contiguous())
        else:
            sparse = grad if plan.gradient is None else sparsify(grad, plan.gradient)
            gradient = compress(sparse, plan.gradient_format, plan.where)
        kernel = BACKWARD.get((*task.back[:2], format_name(gradient)))
        grads = _replayed(call, gradient) if kernel is None else kernel(call, gradient)
        call.saved = ()
        return None, *(g if need else None for g, need in zip(grads, call.needs, strict=True))


class _Slot:
    """The place of a saved tensor."""

    def __init__(self, kept: list[torch.Tensor], x: torch.Tensor) -> None:
        self.number = len(kept)
        kept.append(x)


def _each(x: Any, change: Callable[[Any], Any]) -> Any:
    """The same arguments with each plain tensor, or what stands for one, changed."""
    if isinstance(x, CompressedTensor):
        parts = {name: change(part) for name, part in x.parts.items()}
        return _Held(x.format, parts, x.shape) if _has_slots(parts) else _rebuilt(x, parts)
    if isinstance(x, _Held):
        return CompressedTensor(x.format, _each(x.parts, change), x.shape)
    if isinstance(x, torch.Tensor | _Slot):
        return change(x)
    if isinstance(x, tuple | list):
        return type(x)(_each(part, change) for part in x)
    return {key: _each(part, change) for key, part in x.items()} if isinstance(x, dict) else x


def _has_slots(parts: dict[str, Any]) -> bool:
    return any(isinstance(part, _Slot) for part in parts.values())


def _rebuilt(x: CompressedTensor, parts: dict[str, torch.Tensor]) -> CompressedTensor:
    return CompressedTensor(x.format, parts, x.shape)


@dataclass
class _Held:
    """A compressed tensor whose parts are saved."""

    format: TensorFormat
    parts: dict[str, Any]
    shape: torch.Size


def _replayed(call: Call, gradient: torch.Tensor) -> list[torch.Tensor | None]:
    """Gradients by torch: the operator once more on dense inputs, as STen does it."""
    leaves: list[torch.Tensor] = []

    def leaf(x: Any) -> Any:
        if isinstance(x, tuple | list):
            return type(x)(leaf(part) for part in x)
        if not isinstance(x, torch.Tensor):
            return x
        flat = values_of(x).detach()
        leaves.append(flat.requires_grad_(flat.is_floating_point()))
        return x.with_values(leaves[-1]).dense() if isinstance(x, CompressedTensor) else leaves[-1]

    args, kwargs = call.saved
    with torch.enable_grad():
        args, kwargs = leaf(args), {key: leaf(x) for key, x in kwargs.items()}
        y = call.function(*args, **kwargs)
    wanted = [x for x, need in zip(leaves, call.needs, strict=True) if need]
    found = iter(torch.autograd.grad(y, wanted, densified(gradient), allow_unused=True))
    return [next(found) if need else None for need in call.needs]
