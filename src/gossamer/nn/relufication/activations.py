# SPDX-License-Identifier: Apache-2.0
"""What takes the place of activations and norms: modules that give real zeros."""

import torch
from torch import nn
from torch.nn.functional import relu


class ShiftedReLU(nn.Module):
    """relu(x - shift), or with `keeps` x itself where it is above the shift, and 0 elsewhere.

    The second is FATReLU: a model that was trained with ReLU loses its small activations only. The
    shift is saved with the model and not trained.
    """

    def __init__(self, shift: float, keeps: bool = False) -> None:
        super().__init__()
        self.keeps = keeps
        self.register_buffer("shift", torch.tensor(float(shift)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Zero up to the shift, then rising with slope 1."""
        shift = self.get_buffer("shift").to(x.dtype)
        return torch.where(x > shift, x, 0) if self.keeps else relu(x - shift)

    def extra_repr(self) -> str:
        """The shift, in `print(model)`."""
        kept = ", keeps=True" if self.keeps else ""
        return f"shift={float(self.get_buffer('shift')):.4g}{kept}"


class RectifiedNorm(nn.Module):
    """A ReLU behind a norm: the second stage of relufication.

    Attributes:
        norm: the norm whose place this takes.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the norm gives, without what is below 0."""
        return relu(self.norm(x))
