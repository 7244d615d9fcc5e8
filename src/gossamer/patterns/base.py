# SPDX-License-Identifier: Apache-2.0
"""What a pattern is: the rule that says which masks are legal.

Legend of shape suffixes: R rows (outputs), K columns (inputs). A mask is bool, True = kept.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch

from gossamer.errors import InputError, PatternError
from gossamer.patterns.selection import check_mask, kept_count
from gossamer.patterns.syntax import FORMS


def _checked_density(density: float) -> float:
    """Return `density` if it lies in (0, 1]; raise InputError otherwise, NaN included."""
    if not 0.0 < density <= 1.0:
        raise InputError(f"density: must be in (0, 1], got {density}.")
    return float(density)


class Pattern(ABC):
    """Which zeros are legal. Instances are immutable, hashable, and equal when their text is."""

    @property
    @abstractmethod
    def fixed_density(self) -> float | None:
        """N/M for patterns that fix their density, None where any density is legal."""

    @abstractmethod
    def check_shape(self, shape: tuple[int, ...], where: str = "weight") -> None:
        """Raise PatternError, with the options that remain, if [R, K] does not fit the pattern."""

    @abstractmethod
    def padded_shape(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """The smallest legal shape that holds `shape`; equal to it when it fits."""

    def legal_density(self, shape: tuple[int, ...], density: float) -> float:
        """The density nearest to `density` that this pattern can have on `shape`.

        The fixed one where there is one; patterns of free density say theirs.
        """
        _checked_density(density)
        return density if self.fixed_density is None else self.fixed_density

    @abstractmethod
    def project(self, scores_RK: torch.Tensor, density: float | None = None) -> torch.Tensor:
        """The legal mask that keeps the highest total score.

        Exact: ties are broken towards the lower position, so the count never depends on values.
        `density` is required where `fixed_density` is None and must agree with it elsewhere.
        """

    @abstractmethod
    def validate(self, mask_RK: torch.Tensor, where: str = "mask") -> None:
        """Raise PatternError naming the first place where the mask breaks the pattern."""

    @abstractmethod
    def __str__(self) -> str:
        """The canonical text that `parse_pattern` reads back."""

    def resolve_density(self, density: float | None) -> float:
        """The density to use: the fixed one, or the one asked for; refuse a contradiction."""
        fixed = self.fixed_density
        if fixed is None:
            if density is None:
                raise PatternError(f"pattern {self}: needs a density; give sparsity=...")
            return _checked_density(density)
        if density is not None and abs(density - fixed) > 1e-6:
            raise PatternError(
                f"pattern {self}: keeps exactly {fixed:g} of the weights, but density"
                f" {density:g} was asked for. Leave sparsity out, or write sparsity={1 - fixed:g}."
            )
        return fixed


class BuiltinPattern(Pattern):
    """A row of `syntax.FORMS`: a frozen dataclass whose fields are the numbers of its text.

    Subclasses say which tiles cover a matrix, how scores are projected and what a mask must keep;
    what they are given has been checked.
    """

    form: ClassVar[str]

    def __post_init__(self) -> None:
        FORMS[self.form].check(*self._numbers)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the whole text of the pattern."""
        return cls(*FORMS[cls.form].read(text))

    @property
    def _numbers(self) -> tuple[int, ...]:
        return tuple(vars(self).values())

    @property
    def fixed_density(self) -> float | None:
        """The kept fraction where the pattern fixes it."""
        return FORMS[self.form].density(*self._numbers)

    @property
    @abstractmethod
    def tile(self) -> tuple[int, int]:
        """Rows and columns that a shape must be divisible by."""

    def grid(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Tiles down and across a fitting shape."""
        rows, columns = self.tile
        return shape[0] // rows, shape[1] // columns

    def padded_shape(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """`shape` rounded up to whole tiles."""
        rows, columns = self.tile
        return -(-shape[0] // rows) * rows, -(-shape[1] // columns) * columns

    def legal_density(self, shape: tuple[int, ...], density: float) -> float:
        """The fixed one, or the nearest with a whole number of kept tiles."""
        density = super().legal_density(shape, density)
        num_tiles = math.prod(self.grid(self.padded_shape(shape)))
        if self.fixed_density is not None or not num_tiles:
            return density
        return kept_count(density, num_tiles) / num_tiles

    def check_shape(self, shape: tuple[int, ...], where: str = "weight") -> None:
        """Refuse a shape that tiles do not cover."""
        padded = self.padded_shape(shape)
        if padded != tuple(shape):
            raise PatternError(f"{where} {list(shape)}: {self} {self._shape_fault(shape, padded)}")

    @abstractmethod
    def _shape_fault(self, shape: tuple[int, ...], padded: tuple[int, int]) -> str:
        """What a shape must be, and the options that remain."""

    def project(self, scores_RK: torch.Tensor, density: float | None = None) -> torch.Tensor:
        """The legal mask that keeps the highest total score."""
        wanted = self.resolve_density(density)
        check_scores(scores_RK)
        self.check_shape(scores_RK.shape, "scores")
        return self._chosen(scores_RK, wanted)

    @abstractmethod
    def _chosen(self, scores_RK: torch.Tensor, density: float) -> torch.Tensor:
        """`project`, of scores that were checked."""

    def validate(self, mask_RK: torch.Tensor, where: str = "mask") -> None:
        """Refuse a mask that breaks the pattern, naming the first place."""
        check_mask(mask_RK, where)
        self.check_shape(mask_RK.shape, where)
        fault = self._mask_fault(mask_RK)
        if fault:
            raise PatternError(f"{where} {list(mask_RK.shape)}: {self} {fault}")

    @abstractmethod
    def _mask_fault(self, mask_RK: torch.Tensor) -> str:
        """What is wrong with a mask of a fitting shape; empty if nothing is."""

    def __str__(self) -> str:
        return FORMS[self.form].text.format(*self._numbers)


def check_scores(scores_RK: torch.Tensor) -> None:
    """Refuse scores that cannot be ranked: not 2-D, not floating point, or with NaN."""
    if scores_RK.ndim != 2:
        raise InputError(f"scores: expected 2 dimensions [out, in], got {scores_RK.ndim}.")
    if not scores_RK.is_floating_point():
        raise InputError(f"scores: expected a floating point tensor, got {scores_RK.dtype}.")
    num_nan = int(scores_RK.isnan().sum())
    if num_nan:
        raise InputError(
            f"scores: {num_nan} of {scores_RK.numel()} are NaN and cannot be ranked."
            " Check the weights for NaN before pruning."
        )
