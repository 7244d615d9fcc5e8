# SPDX-License-Identifier: Apache-2.0
"""No constraint: any weight may be dropped. The best quality per kept weight."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gossamer.patterns.base import BuiltinPattern
from gossamer.patterns.selection import keep_largest, kept_count


@dataclass(frozen=True)
class Unstructured(BuiltinPattern):
    """Any mask is legal; the density is chosen per layer."""

    form: ClassVar[str] = "unstructured"

    @property
    def tile(self) -> tuple[int, int]:
        """Every shape fits."""
        return 1, 1

    def _shape_fault(self, shape: tuple[int, ...], padded: tuple[int, int]) -> str:
        return ""

    def _chosen(self, scores_RK: torch.Tensor, density: float) -> torch.Tensor:
        """Keep the round(density * numel) highest scores of the whole matrix."""
        num_kept = kept_count(density, scores_RK.numel())
        return keep_largest(scores_RK.flatten(), num_kept).view(scores_RK.shape)

    def _mask_fault(self, mask_RK: torch.Tensor) -> str:
        return ""
