# SPDX-License-Identifier: Apache-2.0
"""A resident dense weight whose gradient is compressed as soon as it is there.

SAMO (arXiv 2302.05045) multiplies densely and keeps of each layer's gradient what an index into the
flat weight names. The dense gradient of one layer exists inside its backward and nowhere else.
"""

from typing import Any

import torch
from torch.nn.functional import linear

from gossamer.errors import InputError
from gossamer.out_of_memory import names_memory

__all__ = ["dense_linear", "dense_of"]


class _DenseOf(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, dense: torch.Tensor, index: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(index)
        return dense.detach()

    @staticmethod
    @names_memory("compact layer")
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if torch.is_grad_enabled():
            raise InputError(
                "compact layer, mode 'samo': second derivatives need the values, which live in the"
                " dense weight. Call layer.switch('jit') first."
            )
        (index,) = ctx.saved_tensors
        return grad.reshape(-1).index_select(0, index), None, None


def dense_of(values: torch.Tensor, dense: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The dense weight as a function of its kept values.

    Args:
        values: the Parameter that gets the gradient [n]; its numbers are not read.
        dense: the weight, with the numbers [R, K].
        index: int32 places of the values in the flat weight [n].
    """
    result: torch.Tensor = _DenseOf.apply(values, dense, index)  # type: ignore[no-untyped-call]
    return result


def dense_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`x W^T + b`; a 16-bit weight is raised to a wider input, unless autocast lowers that."""
    if not torch.is_autocast_enabled(x.device.type):
        weight = weight.to(torch.promote_types(weight.dtype, x.dtype))
        bias = None if bias is None else bias.to(weight.dtype)
    return linear(x, weight, bias)
