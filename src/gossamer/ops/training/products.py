# SPDX-License-Identifier: Apache-2.0
"""The gradients of a product with kept values, and which of them a backward asks for.

A layer with kept values v has three ops that are closed under differentiation, so that second
derivatives work too:

    L(x, v) = x times W(v)              dx = I(g, v)     dv = V(g, x)
    I(g, v) = g times W(v) transposed   dg = L(h, v)     dv = V(g, h)
    V(g, x) = (g times x)[mask]         dg = L(x, u)     dx = I(g, u)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

from gossamer.out_of_memory import names_memory

Gradients = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Products:
    """The three ops of one kind of layer; `register` makes each the derivative of the others.

    `settings` is what the ops take besides tensors and sizes, `size` the part of the shape of x
    that the layer's weight does not tell.

    Attributes:
        where: begins the message of a failed allocation.
        multiply: L(x, values, mask_bits, settings), without a bias.
        grad_input: the op I(grad, values, mask_bits, *size, settings).
        grad_values: the op V(grad, x, mask_bits, num_values, settings).
        grad_bias: the sum of a gradient over everything but outputs.
        size_of: of x, and of everything that has its shape.
    """

    where: str
    multiply: Callable[..., torch.Tensor]
    grad_input: CustomOpDef
    grad_values: CustomOpDef
    grad_bias: Callable[[torch.Tensor], torch.Tensor]
    size_of: Callable[[torch.Tensor], torch.Size]

    def register(self, multiply: CustomOpDef) -> None:
        """Give the ops their derivatives; `multiply` is the op L, bias included."""
        backward = names_memory(self.where)(self._multiply_backward)
        multiply.register_autograd(backward, setup_context=self._save_multiply)
        self.grad_input.register_autograd(self._input_backward, setup_context=_save)
        self.grad_values.register_autograd(self._values_backward, setup_context=_save)

    def _save_multiply(self, ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, values, mask_bits = inputs[:3]
        needs_x, needs_values = ctx.needs_input_grad[:2]
        # dx needs only the values and dvalues only x: a frozen side frees the other one's input.
        ctx.save_for_backward(x if needs_values else None, values if needs_x else None, mask_bits)
        ctx.size, ctx.settings = self.size_of(x), inputs[-1]
        ctx.num_values, ctx.dtype, ctx.num_inputs = values.numel(), values.dtype, len(inputs)

    def _multiply_backward(self, ctx: Any, grad: torch.Tensor) -> Gradients:
        x, values, mask_bits = ctx.saved_tensors
        needs_x, needs_values, _, needs_bias = wanted_gradients(ctx)[:4]
        dx = dvalues = None
        if needs_x:
            dx = self.grad_input(grad, values, mask_bits, *ctx.size, ctx.settings)
        if needs_values:
            dvalues = self.grad_values(grad, x, mask_bits, ctx.num_values, ctx.settings)
            if dvalues.dtype is not ctx.dtype:
                dvalues = dvalues.to(ctx.dtype)
        dbias = self.grad_bias(grad) if needs_bias else None
        return dx, dvalues, None, dbias, *[None] * (ctx.num_inputs - 4)

    def _input_backward(self, ctx: Any, h: torch.Tensor) -> Gradients:
        grad, values, mask_bits = ctx.saved_tensors
        needs_grad, needs_values = wanted_gradients(ctx)[:2]
        dgrad = dvalues = None
        if needs_grad:
            dgrad = self.multiply(h, values, mask_bits, ctx.settings)
        if needs_values:
            dvalues = self.grad_values(grad, h, mask_bits, values.numel(), ctx.settings)
            dvalues = dvalues.to(values.dtype)
        return dgrad, dvalues, *[None] * (ctx.num_inputs - 2)

    def _values_backward(self, ctx: Any, u: torch.Tensor) -> Gradients:
        grad, x, mask_bits = ctx.saved_tensors
        needs_grad, needs_x = wanted_gradients(ctx)[:2]
        dgrad = dx = None
        if needs_grad:
            dgrad = self.multiply(x, u, mask_bits, ctx.settings)
        if needs_x:
            dx = self.grad_input(grad, u, mask_bits, *self.size_of(x), ctx.settings)
        return dgrad, dx, None, None, None


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.settings, ctx.num_inputs = inputs[-1], len(inputs)


def wanted_gradients(ctx: Any) -> tuple[bool, ...]:
    """Which gradients the running backward really asks a custom operation for.

    `ctx.needs_input_grad` is fixed at forward: it says which inputs are differentiable, not which
    gradients this backward wants. Zero-bubble pipelines ask for the input first and for the weights
    later, in two calls of autograd; an operation that answers by `needs_input_grad` computes both
    products in both. Built-in operations of torch ask the engine, and so does this.
    """
    needed: tuple[bool, ...] = ctx.needs_input_grad
    nodes = [node for node, _ in getattr(ctx, "next_functions", ()) if node is not None]
    if len(nodes) != sum(needed):  # not called by the engine, as under functorch
        return needed
    remaining = iter(nodes)
    return tuple(need and _will_run(next(remaining)) for need in needed)


def _will_run(node: Any) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        # torch refuses to answer for a leaf whose gradient is being captured: it is wanted. It also
        # refuses outside of a backward, where nothing is known and all is computed.
        return True
