# SPDX-License-Identifier: Apache-2.0
"""`y = x W^T + b` where the kept values of W are the differentiable vector.

The dense weight exists only inside a call: forward rebuilds it, multiplies and frees it; backward
rebuilds it for the input and gathers the gradient of the values from the dense product. With
`sparse` no dense matrix exists at all: sparse kernels do the same three products in float32 on the
CPU (ops/training/linear_kernels.py), and what they cannot take is computed densely and counted.
The ops are those of `products.py`: x W(v)^T, g W(v) and (g^T x)[mask].

Values in 16 bits may meet an input in 32: they are raised inside the call, and their gradient is
rounded to their own type, so that neither is ever held in 32 bits.

Legend: T tokens (all leading dimensions), R rows (outputs), K columns (inputs), n kept values.
Without `sparse` plain torch on any device; opaque to torch.compile and torch.export, which see
shapes only.
"""

from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch.nn.functional import linear

from gossamer.errors import InputError
from gossamer.ops.calls import call_op, define_op, expand_for_onnx, is_onnx_export
from gossamer.ops.fallback import report_fallback
from gossamer.ops.training import linear_kernels as train_kernels
from gossamer.ops.training.expansion import expand, fill, gather_kept
from gossamer.ops.training.products import Gradients, Products, wanted_gradients
from gossamer.out_of_memory import names_memory

_WIDE = (torch.float32, torch.float64)
_NARROW = (torch.bfloat16, torch.float16)


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _unflat(y_TR: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[T, R] in the shape of `x`; no view, which nobody could change in place behind a layer."""
    shape = (*x.shape[:-1], y_TR.shape[1])
    result: torch.Tensor = torch.ops.aten._unsafe_view(y_TR, shape)
    return result


def _rows_like(x: torch.Tensor, mask_bits: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], mask_bits.shape[0])


def _runs_sparse(sparse: bool, *operands: torch.Tensor | None) -> bool:
    """Whether sparse kernels are asked for and take these operands; a refusal is counted."""
    if not sparse:
        return False
    reason = train_kernels.why_unusable(*operands)
    if reason is not None:
        report_fallback("compact linear, mode 'kernel'", reason)
    return reason is None


@define_op(
    "compact_linear", "compact layer", lambda x, values, mask_bits, *_: _rows_like(x, mask_bits)
)
def _linear(
    x: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    bias: torch.Tensor | None,
    in_features: int,
    sparse: bool = False,
) -> torch.Tensor:
    values = values.to(x.dtype)
    if _runs_sparse(sparse, x, values, bias):
        y_TR = train_kernels.linear(_flat(x), values, mask_bits, bias)
    else:
        y_TR = linear(_flat(x), expand(values, mask_bits, in_features), bias)
    return _unflat(y_TR, x)


@define_op(
    "compact_linear_grad_input",
    "compact layer",
    lambda grad, values, mask_bits, columns, *_: grad.new_empty(*grad.shape[:-1], columns),
)
def _grad_input(
    grad: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    in_features: int,
    sparse: bool = False,
) -> torch.Tensor:
    values = values.to(grad.dtype)
    if _runs_sparse(sparse, grad, values):
        dx_TK = train_kernels.grad_input(_flat(grad), values, mask_bits, in_features)
    else:
        dx_TK = _flat(grad) @ expand(values, mask_bits, in_features)
    return dx_TK.view(*grad.shape[:-1], in_features)


@define_op(
    "compact_linear_grad_values",
    "compact layer",
    lambda grad, x, mask_bits, num_values, *_: grad.new_empty(num_values),
)
def _grad_values(
    grad: torch.Tensor,
    x: torch.Tensor,
    mask_bits: torch.Tensor,
    num_values: int,
    sparse: bool = False,
) -> torch.Tensor:
    if _runs_sparse(sparse, grad, x):
        return train_kernels.grad_values(_flat(grad), _flat(x), mask_bits, num_values)
    return gather_kept(_flat(grad).T @ _flat(x), mask_bits, num_values)


@define_op(
    "resident_linear",
    "compact layer",
    lambda x, values, dense, mask_bits, bias: _rows_like(x, mask_bits),
)
def _resident_linear(
    x: torch.Tensor,
    values: torch.Tensor,
    dense: torch.Tensor,
    mask_bits: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    y_TR = linear(_flat(x), dense.to(x.dtype), bias)
    return _unflat(y_TR, x)


@define_op("expand_into", "compact layer", mutates={"dense"})
def expand_into(dense: torch.Tensor, values: torch.Tensor, mask_bits: torch.Tensor) -> None:
    """Overwrite a dense weight [R, K] with the kept values and zeros."""
    fill(dense, values, mask_bits)


@define_op(
    "expand_values",
    "compact layer",
    lambda values, mask_bits, num_columns: values.new_empty(mask_bits.shape[0], num_columns),
)
def _expand_values(values: torch.Tensor, mask_bits: torch.Tensor, num_columns: int) -> torch.Tensor:
    return expand(values.contiguous(), mask_bits, num_columns)


@define_op(
    "gather_values",
    "compact layer",
    lambda dense, mask_bits, num_values: dense.new_empty(num_values),
)
def _gather_values(dense: torch.Tensor, mask_bits: torch.Tensor, num_values: int) -> torch.Tensor:
    return gather_kept(dense.contiguous(), mask_bits, num_values)


Products(
    where="compact layer",
    multiply=lambda x, values, mask_bits, sparse: _linear(
        x, values, mask_bits, None, x.shape[-1], sparse
    ),
    grad_input=_grad_input,
    grad_values=_grad_values,
    grad_bias=lambda grad: _flat(grad).sum(0),
    size_of=lambda x: x.shape[-1:],
).register(_linear)


def _save_resident(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])


@names_memory("compact layer")
def _resident_backward(ctx: Any, grad: torch.Tensor) -> Gradients:
    x, values, dense, mask_bits = ctx.saved_tensors
    needs_x, needs_values, _, _, needs_bias = wanted_gradients(ctx)
    dx = None
    if torch.is_grad_enabled() and values.numel() > 1 and values.stride(0) == 0:
        raise InputError(
            "compact linear: second derivatives need the values, which were given up to the dense"
            " weight. Call take_back_values() on the layer first."
        )
    if needs_x and torch.is_grad_enabled():
        # Under create_graph the result must depend on the values, which the dense copy hides.
        dx = _grad_input(grad, values, mask_bits, dense.shape[1])
    elif needs_x:
        dx = (_flat(grad) @ dense.to(grad.dtype)).view(*grad.shape[:-1], dense.shape[1])
    dvalues = None
    if needs_values:
        dvalues = _grad_values(grad, x, mask_bits, values.numel()).to(values.dtype)
    return dx, dvalues, None, None, _flat(grad).sum(0) if needs_bias else None


def _let_derive(op: CustomOpDef, back: CustomOpDef) -> None:
    """Let `back` be the derivative of `op`: the one spreads what the other gathers."""

    def save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        # Kept values are counted; of a dense matrix, the columns are.
        ctx.size = inputs[0].shape[-1]

    def backward(ctx: Any, grad: torch.Tensor) -> Gradients:
        return back(grad, *ctx.saved_tensors, ctx.size), None, None

    op.register_autograd(backward, setup_context=save)


_let_derive(_expand_values, _gather_values)
_let_derive(_gather_values, _expand_values)
_resident_linear.register_autograd(_resident_backward, setup_context=_save_resident)


def _prepare(
    x: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None, in_features: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The operands under autocast's rule, checked; the casts are differentiable."""
    if x.ndim == 0 or x.shape[-1] != in_features:
        raise InputError(
            f"compact linear: expected an input with {in_features} features in its last"
            f" dimension, got shape {list(x.shape)}."
        )
    if x.layout is not torch.strided:
        raise InputError(
            f"compact linear: the input has layout {x.layout}. Make it dense with .to_dense()."
        )
    if x.device != values.device:
        raise InputError(
            f"compact linear: the input is on {x.device}, the layer on {values.device}."
            " Move one of them with .to(device)."
        )
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        # As for nn.Linear, autocast leaves float64 alone.
        x = x.to(dtype) if x.is_floating_point() and x.dtype is not torch.float64 else x
        if values.dtype is not torch.float64:
            values = values.to(dtype)
            bias = None if bias is None else bias.to(dtype)
    if x.dtype in _WIDE and values.dtype in _NARROW:
        # The operations raise the values for themselves; autograd would keep the raised copy.
        return x, values, None if bias is None else bias.to(x.dtype)
    for name, other in (("values are", values), ("bias is", bias)):
        if other is not None and other.dtype != x.dtype:
            raise InputError(
                f"compact linear: the input is {x.dtype}, the {name} {other.dtype}."
                " Cast one of them with .to(dtype), or run under torch.autocast."
            )
    return x, values, bias


def compact_linear(
    x: torch.Tensor,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    bias: torch.Tensor | None,
    in_features: int,
    *,
    sparse: bool = False,
) -> torch.Tensor:
    """`x W^T + b` with W rebuilt from its kept values for this call only.

    Args:
        x: [..., K], any strides, zero rows included.
        values: the n kept values of W [R, K], row-major.
        mask_bits: packed mask uint8 [R, ceil(K/8)], as `formats.bits.pack_bits` gives it.
        bias: [R] or None.
        in_features: K.
        sparse: multiply on sparse kernels instead, forward and backward, where operands allow it.
    """
    if isinstance(x, torch.Tensor):  # torch.fx traces with something else
        x, values, bias = _prepare(x, values, bias, in_features)
    if is_onnx_export():
        return linear(x, expand_for_onnx(values, mask_bits, in_features).to(x.dtype), bias)
    return call_op(_linear, "compact linear", x, values, mask_bits, bias, in_features, sparse)


def resident_linear(
    x: torch.Tensor,
    values: torch.Tensor,
    dense: torch.Tensor,
    mask_bits: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """`x W^T + b` with a dense W that `expand_into` filled from `values` beforehand."""
    x, values, bias = _prepare(x, values, bias, dense.shape[1])
    dense = dense.to(values.dtype)
    return call_op(_resident_linear, "compact linear", x, values, dense, mask_bits, bias)


def expand_values(values: torch.Tensor, mask_bits: torch.Tensor, num_columns: int) -> torch.Tensor:
    """The dense weight [R, K] of kept values, differentiable any number of times."""
    if is_onnx_export():
        return expand_for_onnx(values, mask_bits, num_columns)
    return call_op(_expand_values, "compact layer", values, mask_bits, num_columns)
