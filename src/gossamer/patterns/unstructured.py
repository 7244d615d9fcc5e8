# SPDX-License-Identifier: Apache-2.0
"""No constraint: any weight may be dropped. The best quality per kept weight."""

from dataclasses import dataclass

import torch

from gossamer.patterns.base import Pattern, check_density, check_mask, check_scores, kept_count
from gossamer.patterns.select import keep_largest
from gossamer.patterns.syntax import read_unstructured


@dataclass(frozen=True)
class Unstructured(Pattern):
    """Any mask is legal; the density is chosen per layer."""

    @classmethod
    def parse(cls, text: str) -> "Unstructured":
        """Read `unstructured`."""
        read_unstructured(text)
        return cls()

    @property
    def fixed_density(self) -> float | None:
        """None: any density is legal."""
        return None

    def check_shape(self, shape: tuple[int, int], where: str = "weight") -> None:
        """Accept every shape."""

    def padded_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """`shape` itself."""
        return shape

    def legal_density(self, shape: tuple[int, int], density: float) -> float:
        """The nearest density with a whole number of kept weights."""
        check_density(density)
        numel = shape[0] * shape[1]
        return kept_count(density, numel) / numel if numel else density

    def project(self, scores_RK: torch.Tensor, density: float | None = None) -> torch.Tensor:
        """Keep the round(density * numel) highest scores of the whole matrix."""
        wanted = self.resolve_density(density)
        check_scores(scores_RK)
        num_kept = kept_count(wanted, scores_RK.numel())
        return keep_largest(scores_RK.flatten(), num_kept).view(scores_RK.shape)

    def validate(self, mask_RK: torch.Tensor, where: str = "mask") -> None:
        """Accept every bool matrix."""
        check_mask(mask_RK, where)

    def __str__(self) -> str:
        return "unstructured"
