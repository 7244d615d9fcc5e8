# SPDX-License-Identifier: Apache-2.0
"""Memory for gradients in which idle experts cost nothing."""

import numpy as np
import torch

from gossamer.ops.addresses import address

_LINE = 64
# Smaller arrays are zeroed faster than they are mapped.
_WORTH_MAPPING = 1 << 22


def zeros_like(weight_RK: torch.Tensor) -> torch.Tensor:
    """Zeros of the size of a weight; pages that nobody writes to are never touched.

    torch.zeros writes all of them: for one token of eight experts that was most of a training step.
    """
    nbytes = weight_RK.numel() * weight_RK.element_size()
    if weight_RK.device.type != "cpu" or nbytes < _WORTH_MAPPING:
        return torch.zeros_like(weight_RK, memory_format=torch.contiguous_format)
    # numpy asks the system for pages that are zero; torch's own allocator does not.
    memory = torch.from_numpy(np.zeros(nbytes + _LINE, dtype=np.uint8))
    start = -address(memory, "experts") % _LINE
    return memory[start : start + nbytes].view(weight_RK.dtype).view(weight_RK.shape)
