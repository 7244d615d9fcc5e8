# SPDX-License-Identifier: Apache-2.0
"""Which entries of a parameter of the whole model a rank holds and trains.

The whole model stays the unit of checkpoints: what ranks hold are pieces of it, cut out when the
model is laid out on the grid and put back when it is saved, so a run may go on with another grid.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

Positions = Callable[[], torch.Tensor]


@dataclass
class Piece:
    """A part of one parameter.

    Attributes:
        name: of the parameter in the whole model.
        whole: the whole model's Parameter; its numbers are elsewhere while pieces are trained.
        shape: of the whole parameter.
        used: the Parameter that the local model computes with.
        trained: the Parameter that the optimizer holds; the same one, or a view of its shard.
        positions: entries of the flat whole that `used` holds, in its order; None for all of them.
        share: entries of the flat `used` that `trained` holds; None for all of them.
        copies: ranks that hold the same entries.
    """

    name: str
    whole: nn.Parameter
    shape: torch.Size
    used: nn.Parameter
    trained: nn.Parameter
    positions: Positions | None = None
    share: slice | None = None
    copies: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether this rank holds the parameter as it is."""
        return self.positions is None and self.share is None

    def index(self) -> torch.Tensor | slice:
        """Entries of the flat whole that `trained` holds, in its order."""
        everything = slice(0, self.shape.numel())
        if self.positions is None:
            return everything if self.share is None else self.share
        found = self.positions()
        return found if self.share is None else found[self.share]

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        """The part of a tensor of the whole parameter's shape, such as a moment."""
        if self.is_whole:
            return whole
        return whole.flatten()[self.index()].reshape(self.trained.shape).clone()
