# SPDX-License-Identifier: Apache-2.0
"""Products of tall matrices with small ones: a row for each node, a weight that fits a cache.

torch multiplies with MKL, which runs its AVX2 code on processors of other makers. These kernels use
what the processor has. Which is faster is measured once for each product and size of weight.
Large results go into memory that is used again (`ops/results.py`), whoever computes them.

The two products are closed under differentiation:

    P(x, w) = x w^T      dx = Q(g, w)     dw = O(g, x)
    Q(x, w) = x w        dx = P(g, w)     dw = O(x, g)
    O(g, x) = g^T x      dg = P(x, u)     dx = Q(g, u)

Legend: N rows, a inputs, b outputs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.calls import call_op, define_op
from gossamer.ops.kernels import active_kernels
from gossamer.ops.results import is_large, new_result
from gossamer.ops.timing import contest
from gossamer.settings import tuning_enabled

__all__ = ["tall_linear"]

_WHERE = "tall product"
_ADVICE = "Use narrower layers, work on fewer rows at a time, or free memory."
# Fewer multiplications than this take microseconds in torch, too.
_WORTH_IT = 1 << 20
# Rows of a measurement, and elements that they have at most unless they are very wide.
_LEAST_ROWS, _MOST_ROWS, _MEASURED_ELEMENTS = 256, 4096, 1 << 20
_NAMES = {True: "product", False: "product back"}
Gradients = tuple[Tensor | None, ...]
_faster: dict[tuple[str, int, int, int, str], bool] = {}


def _width(w: Tensor, turned: bool) -> int:
    return w.shape[0] if turned else w.shape[1]


@define_op(
    "tall_product",
    _WHERE,
    lambda x, w, bias, turned, measures=True: x.new_empty(x.shape[0], _width(w, turned)),
    advice=_ADVICE,
)
def _product(
    x: Tensor, w: Tensor, bias: Tensor | None, turned: bool, measures: bool = True
) -> Tensor:
    x, w = x.contiguous(), w.contiguous()
    bias = None if bias is None else bias.contiguous()
    y = new_result(x, x.shape[0], _width(w, turned))
    own = _own_is_faster(_NAMES[turned], x.shape[1], y.shape[1], measures)
    _multiply(x, w, bias, y, turned, own=own)
    return y


def _multiply(
    x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, turned: bool, *, own: bool
) -> None:
    if own:
        arrays = (address(t, _WHERE) for t in (x, w, bias, y))
        _native.tall_product(*arrays, *x.shape, y.shape[1], turned, active_kernels())
        return
    weight = w.t() if turned else w
    if bias is None:
        torch.mm(x, weight, out=y)
    else:
        torch.addmm(bias, x, weight, out=y)


@define_op(
    "tall_outer",
    _WHERE,
    lambda g, x, with_sums, measures=True: (
        x.new_empty(g.shape[1], x.shape[1]),
        x.new_empty(g.shape[1] if with_sums else 0),
    ),
    advice=_ADVICE,
)
def _outer(g: Tensor, x: Tensor, with_sums: bool, measures: bool = True) -> tuple[Tensor, Tensor]:
    """g^T x, and the sums of the columns of g if they are asked for."""
    g, x = g.contiguous(), x.contiguous()
    c = x.new_empty(g.shape[1], x.shape[1])
    sums = x.new_empty(g.shape[1] if with_sums else 0)
    own = _own_is_faster("outer", x.shape[1], g.shape[1], measures)
    _add_up(g, x, c, sums if with_sums else None, own=own)
    return c, sums


def _add_up(g: Tensor, x: Tensor, c: Tensor, sums: Tensor | None, *, own: bool) -> None:
    if own:
        arrays = (address(t, _WHERE) for t in (g, x, c, sums))
        _native.tall_outer(*arrays, *g.shape, x.shape[1], active_kernels())
        return
    torch.mm(g.t(), x, out=c)
    if sums is not None:
        torch.sum(g, 0, out=sums)


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, _, ctx.turned, ctx.measures = inputs
    needs_x, needs_w = ctx.needs_input_grad[:2]
    ctx.save_for_backward(x if needs_w else None, w if needs_x else None)


def _product_backward(ctx: Any, grad: Tensor) -> Gradients:
    x, w = ctx.saved_tensors
    needs_x, needs_w, needs_bias = ctx.needs_input_grad[:3]
    dx = dw = dbias = None
    if needs_x:
        dx = _product(grad, w, None, not ctx.turned, ctx.measures)
    if needs_w and ctx.turned:
        dw, sums = _outer(grad, x, needs_bias, ctx.measures)
        dbias = sums if needs_bias else None
    elif needs_w:
        dw, _ = _outer(x, grad, False, ctx.measures)
    if needs_bias and dbias is None:
        dbias = grad.sum(0)
    return dx, dw, dbias, None, None


def _save_outer(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    g, x, ctx.with_sums, ctx.measures = inputs
    ctx.save_for_backward(g, x)


def _outer_backward(ctx: Any, grad: Tensor, of_sums: Tensor) -> Gradients:
    g, x = ctx.saved_tensors
    dg = dx = None
    if ctx.needs_input_grad[0]:
        dg = _product(x, grad, of_sums if ctx.with_sums else None, True, ctx.measures)
    if ctx.needs_input_grad[1]:
        dx = _product(g, grad, None, False, ctx.measures)
    return dg, dx, None, None


_product.register_autograd(_product_backward, setup_context=_save_product)
_outer.register_autograd(_outer_backward, setup_context=_save_outer)


def tall_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, measures: bool = True
) -> Tensor:
    """`x W^T + b` with x [N, a] and W [b, a], by whichever is faster: these kernels or torch.

    `measures=False` decides by rule, always alike: rounding differs between them.
    """
    if _runs_here(x, weight, bias) and _is_worth_it(x, weight, measures):
        return call_op(_product, _WHERE, x, weight, bias, True, measures)
    return F.linear(x, weight, bias)


def _runs_here(*tensors: Tensor | None) -> bool:
    return all(
        t is None
        or (t.dtype is torch.float32 and t.device.type == "cpu" and t.layout is torch.strided)
        for t in tensors
    )


def _is_worth_it(x: Tensor, weight: Tensor, measures: bool) -> bool:
    outputs, inputs = weight.shape
    if x.ndim != 2 or x.shape[1] != inputs or x.shape[0] * weight.numel() < _WORTH_IT:
        return False
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return False
    # The gradient of x is as large as x.
    if is_large(x, x.shape[0], outputs) or (x.requires_grad and is_large(x, *x.shape)):
        return True
    return any(
        _own_is_faster(*product, measures)
        for product in (
            (_NAMES[True], inputs, outputs),
            (_NAMES[False], outputs, inputs),
            ("outer", inputs, outputs),
        )
    )


def _own_is_faster(product: str, inputs: int, outputs: int, measures: bool) -> bool:
    """Whether these kernels are faster than torch's, by measurement of a few rows or by rule.

    Args:
        product: one of the three.
        inputs: columns of x.
        outputs: columns of the result, or of g.
        measures: time them.
    """
    kernels = active_kernels()
    if not (measures and tuning_enabled()):
        return kernels == "avx512"
    key = product, inputs, outputs, torch.get_num_threads(), kernels
    if key not in _faster:
        _faster[key] = kernels != "reference" and _measured(product, inputs, outputs)
    return _faster[key]


def _measured(product: str, inputs: int, outputs: int) -> bool:
    with torch.no_grad():
        rows = _MEASURED_ELEMENTS // max(inputs, outputs, 1)
        rows = min(max(rows, _LEAST_ROWS), _MOST_ROWS)
        x, g = torch.ones(rows, inputs), torch.ones(rows, outputs)
        w, sums = torch.ones(outputs, inputs), torch.ones(outputs)
        if product == "outer":
            calls = [lambda own=own: _add_up(g, x, w, sums, own=own) for own in (True, False)]
        else:
            turned, bias = product == _NAMES[True], sums if product == _NAMES[True] else None
            w = w if turned else w.t().contiguous()
            calls = [
                lambda own=own: _multiply(x, w, bias, g, turned, own=own) for own in (True, False)
            ]
        ours, theirs = contest(*calls, budget_seconds=0.01).us
    return ours < theirs
