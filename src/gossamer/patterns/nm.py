# SPDX-License-Identifier: Apache-2.0
"""N:M: exactly N kept of every M consecutive inputs of a row.

Legend: R rows, K columns, G = K/M groups of a row.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from gossamer.patterns.base import BuiltinPattern
from gossamer.patterns.selection import keep_largest
from gossamer.patterns.syntax import FORMS


class GroupedPattern(BuiltinPattern):
    """Rows are cut into groups of `group` consecutive inputs."""

    group: int

    @property
    def tile(self) -> tuple[int, int]:
        """Any number of rows fits."""
        return 1, self.group

    def _shape_fault(self, shape: tuple[int, ...], padded: tuple[int, int]) -> str:
        num_columns, other = shape[1], self._nearest_dividing(shape[1])
        return (
            f"needs the input size divisible by {self.group}, got {num_columns}. Options: pad to"
            f" {padded[1]} columns (adds {padded[1] - num_columns}),"
            + (f' pattern "{other}",' if other else "")
            + " or add the layer to ignore."
        )

    @abstractmethod
    def _nearest_dividing(self, num_columns: int) -> BuiltinPattern | None:
        """The most similar pattern whose groups divide `num_columns`, if there is one."""

    def _groups(self, matrix_RK: torch.Tensor) -> torch.Tensor:
        """[R, G, M] view of a fitting matrix."""
        return torch.unflatten(matrix_RK, 1, (matrix_RK.shape[1] // self.group, self.group))

    def _miscounted(self, mask_RK: torch.Tensor, num_kept: int) -> tuple[str, int]:
        """The first group that does not keep `num_kept`, in words, and how many there are."""
        counts_RG = self._groups(mask_RK).sum(dim=-1)
        wrong = (counts_RG != num_kept).nonzero()
        if not len(wrong):
            return "", 0
        row, group = wrong[0].tolist()
        return (
            f"keeps exactly {num_kept} of {self.group}, but row {row}, columns"
            f" {group * self.group} to {(group + 1) * self.group - 1}, keeps"
            f" {int(counts_RG[row, group])}"
        ), len(wrong)


@dataclass(frozen=True)
class NM(GroupedPattern):
    """`num_kept` of every `group` consecutive weights along the input dimension."""

    form: ClassVar[str] = "N:M"
    num_kept: int
    group: int

    def _nearest_dividing(self, num_columns: int) -> "NM | None":
        density = self.num_kept / self.group

        def distance(other: NM) -> tuple[float, int]:
            far = round(abs(other.num_kept / other.group - density), 6)
            return far, abs(other.group - self.group)

        groups = [m for m in range(2, FORMS[self.form].max_group + 1) if num_columns % m == 0]
        return min((NM(max(1, round(density * m)), m) for m in groups), key=distance, default=None)

    def _chosen(self, scores_RK: torch.Tensor, density: float) -> torch.Tensor:
        """Keep the N highest scores of every group."""
        return keep_largest(self._groups(scores_RK), self.num_kept).flatten(1)

    def _mask_fault(self, mask_RK: torch.Tensor) -> str:
        """A group that keeps more or fewer than N."""
        fault, count = self._miscounted(mask_RK, self.num_kept)
        wrong = f" ({count} groups are wrong). Project the scores again or name another pattern."
        return fault + wrong if fault else ""
