# SPDX-License-Identifier: Apache-2.0
"""Memory for the gradient of experts' weights, in which idle experts cost nothing."""

from collections.abc import Sequence

import numpy as np
import torch

from gossamer.ops import _native
from gossamer.ops.addresses import address, direct_address
from gossamer.ops.results import is_large, new_result

Starts = np.ndarray[tuple[int], np.dtype[np.int64]]


def starts_of(counts: Sequence[int]) -> Starts:
    """Where the tokens of each expert begin, and their number at the end."""
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def new_gradient(weight_RK: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """A gradient that is zero for experts without tokens, and not initialised for others.

    Large ones are in memory that is used again from step to step: mapping 85 MB anew took as long
    as the training step of the block. Idle experts give their pages back instead of writing zeros.
    """
    # A weight that somebody traces has no memory, and neither has its gradient.
    if not direct_address(weight_RK) or not is_large(weight_RK, *weight_RK.shape):
        make = torch.empty_like if all(counts) else torch.zeros_like
        return make(weight_RK, memory_format=torch.contiguous_format)
    made = new_result(weight_RK, *weight_RK.shape)
    if not all(counts):
        each = made.nbytes // len(counts)
        _native.clear_idle_experts(starts_of(counts), address(made, "experts"), each)
    return made
