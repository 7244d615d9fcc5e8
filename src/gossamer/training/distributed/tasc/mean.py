# SPDX-License-Identifier: Apache-2.0
"""A gradient that is zero but for the blocks sent last, kept from step to step.

So a step writes and clears what is sent, and not the other 95 %.
"""

import torch
from torch import nn

from gossamer.training.distributed.tasc.packet import Part


class MeanGradient:
    """What a parameter gets for its `.grad`, always the same tensor.

    Whoever changes it in place (clips it, lets autograd add to it) is noticed by its version.

    Args:
        param: whose gradient it is.
    """

    def __init__(self, param: nn.Parameter) -> None:
        self.tensor = torch.zeros_like(param.detach(), memory_format=torch.contiguous_format)
        self._version = self.tensor._version
        self._rows: torch.Tensor | None = None

    def receive(self, part: Part) -> None:
        """Take over what came back, and zeros elsewhere."""
        cut, flat = part.entry.cut, self.tensor.view(-1)
        if self.tensor._version != self._version:
            self.tensor.zero_()
        elif self._rows is not None and len(self._rows):
            flat[: cut.blocked].view(-1, cut.block_size).index_fill_(0, self._rows, 0)
        part.write(flat)
        self._rows, self._version = part.rows, self.tensor._version

    def spoil(self) -> None:
        """Say that a number somewhere was not finite."""
        self.tensor.fill_(float("nan"))
