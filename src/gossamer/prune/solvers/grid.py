# SPDX-License-Identifier: Apache-2.0
"""A quantisation grid per row, fixed before pruning, on which zero is exact."""

from dataclasses import dataclass

import torch

from gossamer.errors import InputError


@dataclass(frozen=True)
class Grid:
    """Levels `scale * (q - zero)`, q = 0 .. 2^bits - 1, one scale and zero point per row."""

    scale_R: torch.Tensor  # noqa: N815  (shape suffix)
    zero_R: torch.Tensor  # noqa: N815
    bits: int

    @classmethod
    def of_rows(cls, weight_RK: torch.Tensor, bits: int) -> "Grid":
        """The grid from each row's smallest to its largest weight; zero is always inside."""
        if not 2 <= bits <= 8:
            raise InputError(f"bits: joint quantisation needs 2 to 8 bits, got {bits}.")
        low_R = weight_RK.amin(dim=1).clamp(max=0.0)
        high_R = weight_RK.amax(dim=1).clamp(min=0.0)
        levels = 2**bits - 1
        scale_R = (high_R - low_R) / levels
        # A row of zeros: any scale represents it.
        scale_R = torch.where(scale_R > 0, scale_R, 1.0)
        return cls(scale_R, torch.round(-low_R / scale_R), bits)

    def round(self, column_R: torch.Tensor) -> torch.Tensor:
        """The nearest level of every row for one weight each."""
        levels_R = torch.round(column_R / self.scale_R) + self.zero_R
        return self.scale_R * (levels_R.clamp(0, 2**self.bits - 1) - self.zero_R)
