# SPDX-License-Identifier: Apache-2.0
"""Sparsifiers that decide entry by entry, in one pass: all, a random fraction, a threshold."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from gossamer.errors import InputError
from gossamer.ops.sparsifiers.base import Sparsifier, fraction_in_range


@dataclass(frozen=True)
class KeepAll(Sparsifier):
    """Nothing becomes zero."""

    name: ClassVar[str] = "keep-all"

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        """All True."""
        return torch.ones_like(x, dtype=torch.bool)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return x


@dataclass(frozen=True)
class RandomFraction(Sparsifier):
    """Each entry is dropped with probability `fraction`; what stays is not scaled."""

    name: ClassVar[str] = "random"
    is_random: ClassVar[bool] = True
    fraction: float

    def __post_init__(self) -> None:
        fraction_in_range(self.fraction, self.name)

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        """Drawn from torch's generator of the device."""
        # float32 also for 16-bit tensors: their uniform numbers are too coarse for a fraction.
        return torch.rand(x.shape, device=x.device) >= self.fraction

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Zeros where the mask is False."""
        return torch.where(self.mask(x), x, 0.0)


@dataclass(frozen=True)
class Threshold(Sparsifier):
    """Entries with |x| below `threshold` become zero; equal ones stay, and so does NaN."""

    name: ClassVar[str] = "threshold"
    threshold: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold < math.inf:
            raise InputError(
                f"sparsifier {self.name}: the threshold is a number from 0, got {self.threshold:g}."
            )
        # hardshrink drops |x| up to its number, included: the next float32 below the threshold.
        near = np.float32(self.threshold)
        below = np.nextafter(near, np.float32(-1)) if float(near) >= self.threshold else near
        object.__setattr__(self, "_below", float(below))

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        """Whether not |x| < threshold."""
        return ~(x.abs() < self.threshold)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """One fused pass where the type allows it."""
        if self.threshold == 0.0:
            return x
        if x.dtype is torch.float32:
            return F.hardshrink(x, self.__dict__["_below"])
        return torch.where(self.mask(x), x, 0.0)
