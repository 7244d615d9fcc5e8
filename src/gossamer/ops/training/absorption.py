# SPDX-License-Identifier: Apache-2.0
"""A gradient is added to the sum of those before it, and both are measured, in one pass.

One operation of torch after the other reads and writes the same in four passes.

Legend: R blocks, N elements of a block.
"""

import torch

from gossamer.ops import _native
from gossamer.ops.addresses import address, runs_native
from gossamer.ops.kernels import active_kernels

_WHERE = "absorb"


def absorb(
    gradient_RN: torch.Tensor, held_RN: torch.Tensor, fresh_R: torch.Tensor, scores_R: torch.Tensor
) -> None:
    """Add a gradient to what is held.

    A few blocks at a time: where one of them has a number that is not finite none is changed, and
    their scores become those of the gradient.

    Args:
        gradient_RN: what is added.
        held_RN: to what; changed in place.
        fresh_R: becomes the mean square of the gradient in each block.
        scores_R: becomes the mean square of what is held afterwards.
    """
    tensors = (gradient_RN, held_RN, fresh_R, scores_R)
    if all(t.dtype is torch.float32 for t in tensors) and runs_native(*tensors):
        _native.absorb(
            address(gradient_RN, _WHERE),
            address(held_RN, _WHERE),
            held_RN.shape[0],
            held_RN.shape[1],
            address(fresh_R, _WHERE),
            address(scores_R, _WHERE),
            active_kernels(),
        )
    else:
        absorb_by_torch(*tensors)


def absorb_by_torch(
    gradient_RN: torch.Tensor, held_RN: torch.Tensor, fresh_R: torch.Tensor, scores_R: torch.Tensor
) -> None:
    """The same for any dtype and device."""
    num_blocks, block_size = held_RN.shape
    together = _native.absorbed_together(block_size)
    for start in range(0, num_blocks, together):
        span = slice(start, min(start + together, num_blocks))
        gradient = gradient_RN[span].to(held_RN.dtype)
        torch.linalg.vector_norm(gradient, dim=1, out=fresh_R[span])
        if torch.isfinite(fresh_R[span].sum()):
            held_RN[span].add_(gradient)
            torch.linalg.vector_norm(held_RN[span], dim=1, out=scores_R[span])
        else:
            scores_R[span] = fresh_R[span]
    scores_R.square_().div_(block_size)
    fresh_R.square_().div_(block_size)
