# SPDX-License-Identifier: Apache-2.0
"""N:M: exactly N kept of every M consecutive inputs of a row.

Legend: R rows, K columns, G = K/M groups of a row.
"""

from dataclasses import dataclass

import torch

from gossamer.errors import PatternError
from gossamer.patterns.base import Pattern, check_mask, check_scores
from gossamer.patterns.select import keep_largest
from gossamer.patterns.syntax import MAX_NM_GROUP, check_nm, read_nm


@dataclass(frozen=True)
class NM(Pattern):
    """`num_kept` of every `group` consecutive weights along the input dimension."""

    num_kept: int
    group: int

    def __post_init__(self) -> None:
        check_nm(self.num_kept, self.group)

    @classmethod
    def parse(cls, text: str) -> "NM":
        """Read `N:M`."""
        return cls(*read_nm(text))

    @property
    def fixed_density(self) -> float:
        """N/M."""
        return self.num_kept / self.group

    def check_shape(self, shape: tuple[int, int], where: str = "weight") -> None:
        """Refuse an input size that M does not divide."""
        num_columns = shape[1]
        if num_columns % self.group == 0:
            return
        padded = self.padded_shape(shape)[1]
        other = self._nearest_dividing(num_columns)
        raise PatternError(
            f"{where} {list(shape)}: {self} needs the input size divisible by {self.group}, got"
            f" {num_columns}. Options: pad to {padded} columns (adds {padded - num_columns}),"
            + (f' pattern "{other}",' if other else "")
            + " or add the layer to ignore."
        )

    def _nearest_dividing(self, num_columns: int) -> "NM | None":
        """The pattern of nearest density whose M divides `num_columns`, if there is one."""
        candidates = [
            NM(max(1, round(self.fixed_density * group)), group)
            for group in range(2, MAX_NM_GROUP + 1)
            if num_columns % group == 0
        ]
        return min(
            candidates,
            key=lambda c: (
                round(abs(c.fixed_density - self.fixed_density), 6),
                abs(c.group - self.group),
            ),
            default=None,
        )

    def padded_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """`shape` with the columns rounded up to whole groups."""
        return shape[0], -(-shape[1] // self.group) * self.group

    def project(self, scores_RK: torch.Tensor, density: float | None = None) -> torch.Tensor:
        """Keep the N highest scores of every group."""
        self.resolve_density(density)
        check_scores(scores_RK)
        num_rows, num_columns = scores_RK.shape
        self.check_shape((num_rows, num_columns), "scores")
        scores_RGM = scores_RK.reshape(num_rows, num_columns // self.group, self.group)
        return keep_largest(scores_RGM, self.num_kept).view(num_rows, num_columns)

    def validate(self, mask_RK: torch.Tensor, where: str = "mask") -> None:
        """Refuse a group that keeps more or fewer than N."""
        check_mask(mask_RK, where)
        num_rows, num_columns = mask_RK.shape
        self.check_shape((num_rows, num_columns), where)
        groups_RGM = mask_RK.reshape(num_rows, num_columns // self.group, self.group)
        counts_RG = groups_RGM.sum(dim=-1)
        wrong = (counts_RG != self.num_kept).nonzero()
        if len(wrong):
            row, group = wrong[0].tolist()
            raise PatternError(
                f"{where} {list(mask_RK.shape)}: {self} keeps exactly {self.num_kept} of"
                f" {self.group}, but row {row}, columns {group * self.group} to"
                f" {(group + 1) * self.group - 1}, keeps {int(counts_RG[row, group])}"
                f" ({len(wrong)} groups are wrong). Project the scores again or name another"
                " pattern."
            )

    def __str__(self) -> str:
        return f"{self.num_kept}:{self.group}"
