# SPDX-License-Identifier: Apache-2.0
"""A sparsifier is applied to a tensor, or to the gradient that comes back for it.

What compilers cannot look into, because it ranks numbers or is a user's, is one custom op there
that makes the mask; the rest they see and fuse.
"""

from typing import Any

import torch

from gossamer.errors import InputError
from gossamer.ops.calls import call_op, define_op, is_traced
from gossamer.ops.sparsifiers.base import Sparsifier
from gossamer.ops.sparsifiers.text import parse_sparsifier


@define_op("keep_mask", "sparsifier", lambda x, text: torch.empty_like(x, dtype=torch.bool))
def _keep_mask(x: torch.Tensor, text: str) -> torch.Tensor:
    return _checked_mask(x, parse_sparsifier(text)).contiguous()


def _checked_mask(x: torch.Tensor, sparsifier: Sparsifier) -> torch.Tensor:
    """The mask of a sparsifier that may be anybody's."""
    sparsifier.check_shape(x.shape, "sparsifier")
    mask = sparsifier.mask(x)
    if not isinstance(mask, torch.Tensor) or mask.shape != x.shape:
        got = list(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise InputError(
            f"sparsifier {sparsifier} changes shapes: its mask for a tensor {list(x.shape)} is"
            f" {got}; a sparsifier says for each entry whether it stays."
        )
    if mask.dtype is not torch.bool:
        raise InputError(
            f"sparsifier {sparsifier}: its mask is {mask.dtype}; expected bool, True = kept."
        )
    return mask


def kept_entries(x: torch.Tensor, sparsifier: Sparsifier) -> torch.Tensor:
    """The checked mask, as tracers can take it."""
    x = x.detach().contiguous()
    if is_traced(x):
        return call_op(_keep_mask, "sparsifier", x, sparsifier.text)
    return _checked_mask(x, sparsifier)


def sparsify(x: torch.Tensor, sparsifier: Sparsifier) -> torch.Tensor:
    """Each entry of x as it is, or zero; the gradient has zeros at the same entries."""
    if not x.is_floating_point():
        raise InputError(
            f"sparsifier {sparsifier}: expected a floating point tensor, got {x.dtype}."
        )
    y = sparsifier.apply(x)
    return torch.where(kept_entries(x, sparsifier), x, 0.0) if y is None else y


def pass_gradient_through(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """y, which is x with zeros; its gradient is that of x, dropped entries included."""
    return x - torch.where(y != x, x, 0.0).detach()


class _Gradient(torch.autograd.Function):
    """Nothing forwards, a sparsifier backwards."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sparsifier: Sparsifier) -> torch.Tensor:
        ctx.sparsifier = sparsifier
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return sparsify(grad, ctx.sparsifier), None


# The same for tracers, for which an op cannot return what it was given.
@define_op("sparse_gradient", "sparsifier", lambda x, text: torch.empty_like(x))
def _sparse_gradient(x: torch.Tensor, text: str) -> torch.Tensor:
    return x.clone()


def _save_text(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.text = inputs[1]


def _sparse_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return torch.where(_keep_mask(grad.contiguous(), ctx.text), grad, 0.0), None


_sparse_gradient.register_autograd(_sparse_backward, setup_context=_save_text)


def sparsify_gradient(x: torch.Tensor, sparsifier: Sparsifier) -> torch.Tensor:
    """x, whose gradient is made sparse before it goes on to what computed x."""
    if is_traced(x):
        return call_op(_sparse_gradient, "sparsifier", x, sparsifier.text)
    passed: torch.Tensor = _Gradient.apply(x, sparsifier)  # type: ignore[no-untyped-call]
    return passed
