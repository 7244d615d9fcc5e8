# SPDX-License-Identifier: Apache-2.0
"""Operators that keep zeros zero: compressed in, compressed out, work for kept entries only."""

import torch

from gossamer.ops.operators.compressed import CompressedTensor
from gossamer.ops.operators.kernels import Call, add_backward, add_forward

_FUNCTIONS = ("relu", "gelu", "silu", "tanh")


def _on_values(call: Call, x: CompressedTensor, *args: object, **kwargs: object) -> torch.Tensor:
    values = x.parts["values"]
    call.saved = values, args, kwargs
    y = call.function(values.clone(), *args, **kwargs)  # it may be asked to work in place
    return x.with_values(y)


def _on_values_backward(call: Call, gradient: CompressedTensor) -> tuple[torch.Tensor, ...]:
    values, args, kwargs = call.saved
    with torch.enable_grad():
        leaf = values.detach().requires_grad_()
        y = call.function(leaf.clone(), *args, **kwargs)
    (grad,) = torch.autograd.grad(y, leaf, gradient.parts["values"])
    return (grad,)


def _keeps_all(call: Call) -> bool:
    return str(call.inline) == "keep-all"


for _name in _FUNCTIONS:
    add_forward(_name, ("csr",), "csr", _keeps_all)(_on_values)
    add_backward(_name, ("csr",), "csr")(_on_values_backward)


def _same_shape(call: Call) -> bool:
    first, *others = call.args
    fits = all(not isinstance(x, torch.Tensor) or x.shape == first.shape for x in others)
    types = {x.dtype for x in call.tensors()}
    return fits and len(others) == 1 and len(types) == 1 and not call.kwargs and _keeps_all(call)


@add_forward("mul", ("csr",), "csr", _same_shape)
def _mul(call: Call, x: CompressedTensor, other: torch.Tensor | float) -> CompressedTensor:
    values = x.parts["values"]
    factor = other.reshape(-1)[places(x)] if isinstance(other, torch.Tensor) else other
    call.saved = x, factor
    return x.with_values(values * factor)


@add_backward("mul", ("csr",), "csr")
def _mul_backward(call: Call, gradient: CompressedTensor) -> tuple[torch.Tensor | None, ...]:
    x, factor = call.saved
    grad = gradient.parts["values"]
    if len(call.needs) == 1:
        return (grad * factor,)
    other = None
    if call.needs[1]:
        other = grad.new_zeros(x.shape.numel())
        other = other.index_put_((places(x),), grad * x.parts["values"]).view(x.shape)
    return grad * factor, other


@add_forward("add", ("csr", "csr"), "csr", _same_shape)
def _add(call: Call, left: CompressedTensor, right: CompressedTensor) -> CompressedTensor:
    both = torch.cat([places(left), places(right)])
    kept, slots = torch.unique(both, return_inverse=True)
    call.saved = (slots, len(left.parts["values"]))
    values = left.parts["values"].new_zeros(len(kept))
    values.index_add_(0, slots, torch.cat([left.parts["values"], right.parts["values"]]))
    width = max(left.shape[-1], 1)
    starts = torch.zeros_like(left.parts["starts"])
    counts = torch.bincount(kept // width, minlength=len(starts) - 1)
    starts[1:] = counts.cumsum(0)
    parts = {"values": values, "columns": (kept % width).int(), "starts": starts}
    return CompressedTensor(left.format, parts, left.shape)


@add_backward("add", ("csr", "csr"), "csr")
def _add_backward(call: Call, gradient: CompressedTensor) -> tuple[torch.Tensor, ...]:
    slots, first = call.saved
    grad = gradient.parts["values"][slots]
    return grad[:first], grad[first:]


def places(x: CompressedTensor) -> torch.Tensor:
    """int64 [n]: where kept entries are in the flat tensor, in order."""
    starts = x.parts["starts"]
    rows = torch.repeat_interleave(torch.arange(len(starts) - 1), starts.diff().long())
    return rows * x.shape[-1] + x.parts["columns"]
