# SPDX-License-Identifier: Apache-2.0
"""Kernels for formats of intermediate tensors, forward and backward, against float64."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from gossamer.errors import KernelError, RegistryError
from gossamer.ops import strict
from gossamer.ops.operators import CompressedTensor, Plan, run_operator
from gossamer.ops.operators.compressed import densified, tensor_format
from gossamer.ops.operators.kernels import BACKWARD, FORWARD, kernel_name
from gossamer.ops.sparsifiers import parse_sparsifier

# What a case is made of: a function of torch, its arguments, and named ones.
Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def _numbers(*shape: int) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + 6))
    return torch.where(x.abs() < 0.7, 0.0, x)


def _cases(operator: str) -> list[Case]:
    """Edge shapes of the operators of the table: one row, none, remainders, leading dimensions."""
    shapes = ((5, 12), (1, 12), (0, 12), (2, 3, 12))
    weight, bias = _numbers(7, 12) + 1, _numbers(7)
    one = [_numbers(*shape) for shape in shapes]
    ids = torch.tensor([[0, 6, 2], [6, 6, 1]])
    image = _numbers(3, 4, 6, 6)
    made: dict[str, list[Case]] = {
        "linear": [
            *((F.linear, (x, weight, bias), {}) for x in one),
            (F.linear, (one[0], weight), {}),
        ],
        "matmul": [
            *((torch.matmul, (x, weight.t()), {}) for x in one),
            (torch.mm, (one[0], weight.t()), {}),
        ],
        "softmax": [(torch.softmax, (x, -1), {}) for x in one],
        "embedding": [(F.embedding, (ids, weight), {}), (F.embedding, (ids[0], weight), {})],
        "conv": [(F.conv2d, (image, _numbers(5, 4, 3, 3), _numbers(5)), {"padding": 1})],
        "layer_norm": [(F.layer_norm, (x, (12,), weight[0], weight[1]), {}) for x in one],
    }
    for name, function in _ALONE.items():
        made[name] = [(function, (x,), {}) for x in one]
    for name, function in _OF_TWO.items():
        made[name] = [(function, (x, x.flip(-1)), {}) for x in one]
    return made.get(operator, [])


_ALONE: dict[str, Callable[..., Any]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
_ALONE["sigmoid"] = torch.sigmoid
_OF_TWO: dict[str, Callable[..., Any]] = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}


def check_operator(operator: str, name: str, cases: Sequence[Case] = ()) -> None:
    """Raise KernelError at the first case in which a kernel such as `csr->dense` is wrong."""
    left, _, output = name.partition("->")
    inputs = tuple(part for part in left.split(",") if part != "dense")
    keys = [key for key in FORWARD if key == (operator, inputs, output)]
    if not keys:
        known = ", ".join(kernel_name(key) for key in FORWARD if key[0] == operator) or "none"
        raise RegistryError(f"no kernel {operator} {name}; registered: {known}.")
    gradients = [g for op, ins, g in BACKWARD if (op, ins) == (operator, inputs)]
    gradients = [g for g in gradients if output in ("dense", g)]
    if not gradients:
        raise KernelError(f"{operator} {name}: there is no backward kernel for its gradients.")
    found = 0
    for function, args, kwargs in cases or _cases(operator):
        for dtype in (torch.float32, torch.float64):
            for gradient in gradients:
                plan = Plan(f"{operator} {name}", _ALL, output, _ALL, gradient)
                found += _check(operator, inputs, plan, (function, _as(args, dtype), kwargs))
    if not found:
        raise KernelError(
            f"{operator} {name}: computes none of the cases. Give some: check_op(..., cases=[("
            "function, arguments, named arguments), ...])."
        )


def _as(args: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    floats = (isinstance(x, torch.Tensor) and x.is_floating_point() for x in args)
    return tuple(x.to(dtype) if f else x for x, f in zip(args, floats, strict=True))


def _check(operator: str, inputs: tuple[str, ...], plan: Plan, case: Case) -> int:
    function, args, kwargs = case
    where = f"{plan.where}, {plan.gradient_format} gradient, {[_shape(x) for x in args]}"
    leaves = [
        x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in args
    ]
    given, formats = [], list(inputs)
    for x in leaves:
        form = tensor_format(formats.pop(0)) if isinstance(x, torch.Tensor) and formats else None
        if form is not None and not form.accepts(x):
            return 0
        given.append(x if form is None else CompressedTensor.of(x, x.detach() != 0, form))
    with strict():
        y = run_operator(operator, function, given, kwargs, plan)
    wide = [
        x.detach().double().requires_grad_(x.is_floating_point())
        if isinstance(x, torch.Tensor) and x.is_floating_point()
        else x
        for x in args
    ]
    wanted = function(*wide, **kwargs)
    _close(densified(y), wanted, where, "the output")
    grad = torch.sin(torch.arange(wanted.numel()).double()).view(wanted.shape)
    if isinstance(y, CompressedTensor) or plan.gradient_format != "dense":
        grad = grad * (densified(y) != 0)  # what is not held has no gradient
    floats = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    wide_floats = [x for x in wide if isinstance(x, torch.Tensor) and x.requires_grad]
    with strict():
        grads = torch.autograd.grad(densified(y), floats, grad.to(floats[0].dtype))
    oracle = torch.autograd.grad(wanted, wide_floats, grad)
    for number, (got, want, x) in enumerate(zip(grads, oracle, floats, strict=True)):
        held = isinstance(given[number], CompressedTensor)
        _close(got, want * (x.detach() != 0) if held else want, where, f"gradient {number}")
    return 1


_ALL = parse_sparsifier("keep-all")


def _shape(x: Any) -> Any:
    return list(x.shape) if isinstance(x, torch.Tensor) else x


def _close(got: torch.Tensor, want: torch.Tensor, where: str, what: str) -> None:
    if got.shape != want.shape:
        raise KernelError(f"{where}: {what} is {list(got.shape)}, expected {list(want.shape)}.")
    got, want = got.detach(), want.detach()
    bound = 60 * torch.finfo(got.dtype).eps * (want.abs().amax() + 1 if want.numel() else 1)
    if bool(((got.double() - want).abs() > bound).any()) or bool(got.isnan().any()):
        worst = float((got.double() - want).abs().max())
        raise KernelError(f"{where}: {what} is off by {worst:.2g}.")
