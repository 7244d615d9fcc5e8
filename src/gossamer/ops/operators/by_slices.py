# SPDX-License-Identifier: Apache-2.0
"""Operators that give compressed tensors: computed slice by slice, made sparse in the cache.

A slice is some entries of the first dimension. Its output gets its zeros and is compressed before
the next one is computed, so the whole dense output never exists. Backwards each slice is computed
once more and gets its part of the gradient.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gossamer.ops.operators.compressed import CompressedTensor
from gossamer.ops.operators.csr import CSR
from gossamer.ops.operators.kernels import Call, add_backward, add_forward
from gossamer.ops.sparsifiers import sparsify

_SLICE_BYTES = 1 << 18  # of output: stays in the second cache

# Which positional arguments have the first dimension of the output; others are taken whole.
_SLICED: dict[str, Sequence[int]] = {
    **dict.fromkeys(("linear", "matmul", "conv", "softmax", "layer_norm"), (0,)),
    **dict.fromkeys(("relu", "embedding", "gelu", "silu", "tanh", "sigmoid"), (0,)),
    **dict.fromkeys(("add", "sub", "mul"), (0, 1)),
}

# Their backward kernels are those of `products.py`.
_PRODUCTS = ("linear", "matmul")


def _accepts(sliced: Sequence[int]) -> Callable[[Call], bool]:
    def accepts(call: Call) -> bool:
        parts = [call.args[i] for i in sliced if i < len(call.args)]
        tensors = [x for x in parts if isinstance(x, torch.Tensor)]
        named = any(isinstance(x, torch.Tensor) for x in call.kwargs.values())
        if not tensors or tensors[0] is not parts[0] or named:
            return False
        x = tensors[0]
        # A dimension that an operator sums over, or that is not there to be cut.
        floats = [t.dtype for t in call.tensors() if t.is_floating_point()]
        fits = x.ndim > 1 or (x.ndim == 1 and not x.is_floating_point())
        return (
            fits
            and all(t.shape == x.shape for t in tensors)
            and len(set(floats)) == 1
            and floats[0] in (torch.float32, torch.float64)
            and call.inline.scope != "materialising"
            and _keeps_first(call, x)
        )

    return accepts


def _keeps_first(call: Call, x: torch.Tensor) -> bool:
    """Whether slices of the input give slices of the output."""
    name = getattr(call.function, "__name__", "")
    if name == "softmax":
        dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
        return isinstance(dim, int) and bool(dim % x.ndim)
    if name in ("matmul", "__matmul__", "mm"):
        return bool(call.args[1].ndim == 2)
    if name.startswith("conv"):
        return bool(x.ndim == call.args[1].ndim)
    if name == "layer_norm":
        return x.ndim > len(call.args[1])
    return name != "bmm"


def _slices(call: Call, sliced: Sequence[int], args: Sequence[Any]) -> Iterator[list[Any]]:
    """Arguments of one slice after the other."""
    first = args[sliced[0]]
    length = len(first)
    step = _rows_at_once(call, first)
    for start in range(0, length, step) if length else (0,):
        part = list(args)
        for place in sliced:
            if place < len(args) and isinstance(args[place], torch.Tensor):
                part[place] = args[place][start : start + step]
        yield part


def _rows_at_once(call: Call, x: torch.Tensor) -> int:
    row_bytes = max(x[:1].numel(), 1) * 4
    rows = max(1, _SLICE_BYTES // row_bytes)
    tall = call.inline.block[0]  # blocks are not cut
    return -(-rows // tall) * tall


def _sliced(operator: str, sliced: Sequence[int]) -> Callable[..., CompressedTensor]:
    def run(call: Call, *args: Any, **kwargs: Any) -> CompressedTensor:
        if operator in _PRODUCTS:
            call.saved = args[:2]
        elif operator != "relu":
            call.saved = args, kwargs
        made = []
        for part in _slices(call, sliced, args):
            y = sparsify(call.function(*part, **kwargs), call.inline)
            made.append(CompressedTensor.of(y, y != 0, CSR))
        return _joined(made)

    return run


def _joined(made: list[CompressedTensor]) -> CompressedTensor:
    """Slices behind one another."""
    shape = torch.Size((sum(part.shape[0] for part in made), *made[0].shape[1:]))
    starts, held = [made[0].parts["starts"][:1]], 0
    for part in made:
        starts.append(part.parts["starts"][1:] + held)
        held += len(part.parts["values"])
    parts = {name: torch.cat([x.parts[name] for x in made]) for name in ("values", "columns")}
    return CompressedTensor(CSR, {**parts, "starts": torch.cat(starts)}, shape)


def _backward(sliced: Sequence[int]) -> Callable[..., list[torch.Tensor | None]]:
    def run(call: Call, gradient: CompressedTensor) -> list[torch.Tensor | None]:
        args, kwargs = call.saved
        whole = [i for i, x in enumerate(args) if isinstance(x, torch.Tensor)]
        sums: dict[int, Any] = {i: [] for i in whole}
        start = 0
        for part in _slices(call, sliced, args):
            leaves = dict(zip(whole, (part[i].detach() for i in whole), strict=True))
            with torch.enable_grad():
                for i, need in zip(whole, call.needs, strict=False):
                    leaves[i].requires_grad_(need)
                y = call.function(*(leaves.get(i, x) for i, x in enumerate(part)), **kwargs)
            wanted = [i for i in whole if leaves[i].requires_grad]
            stop = start + len(y)
            grads = torch.autograd.grad(
                y, [leaves[i] for i in wanted], _rows(gradient, start, stop)
            )
            for i, grad in zip(wanted, grads, strict=True):
                if i in sliced or not sums[i]:
                    sums[i].append(grad)
                else:
                    sums[i][0].add_(grad)
            start = stop
        found = [torch.cat(sums[i]) if sums[i] else None for i in whole]
        return found + [None] * (len(call.needs) - len(found))

    return run


def _rows(x: CompressedTensor, start: int, stop: int) -> torch.Tensor:
    """Entries start to stop of the first dimension, dense."""
    inner = x.shape[1:-1].numel()
    starts = x.parts["starts"][start * inner : stop * inner + 1]
    kept = slice(int(starts[0]), int(starts[-1]))
    parts = {"values": x.parts["values"][kept], "columns": x.parts["columns"][kept]}
    shape = torch.Size((stop - start, *x.shape[1:]))
    return CSR.dense({**parts, "starts": starts - starts[0]}, shape)


for _name, _places in _SLICED.items():
    add_forward(_name, (), "csr", _accepts(_places))(_sliced(_name, _places))
    if _name not in (*_PRODUCTS, "relu"):
        add_backward(_name, (), "csr")(_backward(_places))


@add_backward("relu", (), "csr")
def _relu_backward(call: Call, gradient: CompressedTensor) -> tuple[torch.Tensor]:
    # What is held was above zero and passed as it was: the input is not needed.
    return (gradient.dense(),)
