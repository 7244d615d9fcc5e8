# SPDX-License-Identifier: Apache-2.0
"""An evaluation that several processes can share: outputs block by block, then numbers of all."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

Numbers = dict[str, float]


@dataclass(frozen=True)
class SharedEvaluation:
    """Named numbers of a model; called with one, it measures all blocks in this process.

    Attributes:
        sizes: outputs of each block.
        outputs: float32 [size] of a model on block number i; [0] for a number behind the last one,
            which a model that needs all processes for one answer is asked for as well.
        conclude: the numbers, from the outputs of all blocks in their order.
    """

    sizes: tuple[int, ...]
    outputs: Callable[[nn.Module, int], torch.Tensor]
    conclude: Callable[[torch.Tensor], Numbers]

    def __call__(self, model: nn.Module) -> Numbers:
        """The numbers of `model`."""
        return self.conclude(self.part(model, 0, 1))

    def part(self, model: nn.Module, index: int, count: int) -> torch.Tensor:
        """Outputs [all], zeros but for blocks index, index + count, ...

        A block's outputs do not depend on who asks for them, so that sums of parts have the bits
        of one process. Every part takes the same number of calls.
        """
        found = torch.zeros(sum(self.sizes))
        places = torch.split(found, list(self.sizes))
        for first in range(0, len(self.sizes), count):
            outputs = self.outputs(model, first + index)
            if first + index < len(self.sizes):
                places[first + index].copy_(outputs)
        return found
