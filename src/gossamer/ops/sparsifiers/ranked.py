# SPDX-License-Identifier: Apache-2.0
"""Sparsifiers that rank magnitudes: in blocks, over the tensor, or whole blocks against each other.

All keep exact counts; the lower position wins a tie.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from gossamer.errors import InputError
from gossamer.ops.sparsifiers.base import (
    Scope,
    Sparsifier,
    fraction_in_range,
    magnitudes,
    whole_blocks,
)
from gossamer.patterns import Pattern
from gossamer.patterns.selection import keep_largest, kept_count, summable


def _block_length(length: float, name: str) -> int:
    if length < 1 or length != int(length):
        raise InputError(
            f"sparsifier {name}: a block has a whole number of entries from 1, got {length:g}."
        )
    return int(length)


@dataclass(frozen=True)
class TensorFraction(Sparsifier):
    """The `fraction` of smallest magnitudes of the whole tensor is dropped."""

    name: ClassVar[str] = "fraction"
    scope: ClassVar[Scope] = "materialising"
    fraction: float

    def __post_init__(self) -> None:
        fraction_in_range(self.fraction, self.name)

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        """Keeps round((1 - fraction) * numel) entries."""
        kept = kept_count(1 - self.fraction, x.numel())
        return keep_largest(magnitudes(x).flatten(), kept).view(x.shape)


@dataclass(frozen=True)
class PerBlockFraction(Sparsifier):
    """The `fraction` of smallest magnitudes of every block of consecutive entries is dropped."""

    name: ClassVar[str] = "per-block"
    scope: ClassVar[Scope] = "blocking"
    fraction: float
    length: float

    def __post_init__(self) -> None:
        fraction_in_range(self.fraction, self.name)
        _block_length(self.length, self.name)

    @property
    def block(self) -> tuple[int, int]:
        """Consecutive entries of the last dimension."""
        return 1, int(self.length)

    def check_shape(self, shape: Sequence[int], where: str) -> None:
        """Blocks divide the last dimension."""
        whole_blocks(int(self.length), shape, where, str(self))

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        """Keeps round((1 - fraction) * length) of each block."""
        length = int(self.length)
        scores = magnitudes(x).reshape(-1, length)
        return keep_largest(scores, kept_count(1 - self.fraction, length)).view(x.shape)


@dataclass(frozen=True)
class BlockFraction(Sparsifier):
    """Whole blocks of consecutive entries are dropped, those with the smallest sums of |x|."""

    name: ClassVar[str] = "block-fraction"
    scope: ClassVar[Scope] = "materialising"
    fraction: float
    length: float

    def __post_init__(self) -> None:
        fraction_in_range(self.fraction, self.name)
        _block_length(self.length, self.name)

    def check_shape(self, shape: Sequence[int], where: str) -> None:
        """Blocks divide the last dimension."""
        whole_blocks(int(self.length), shape, where, str(self))

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        """Keeps round((1 - fraction) * blocks) blocks of the tensor."""
        sums = summable(magnitudes(x)).reshape(-1, int(self.length)).sum(1)
        kept = keep_largest(sums, kept_count(1 - self.fraction, len(sums)))
        return kept[:, None].expand(-1, int(self.length)).reshape(x.shape)


@dataclass(frozen=True)
class ByPattern(Sparsifier):
    """The largest magnitudes that a pattern with a density of its own allows, as 2:4 or n:m:g."""

    scope: ClassVar[Scope] = "blocking"
    pattern: Pattern

    @property
    def block(self) -> tuple[int, int]:
        """The smallest matrix of the pattern."""
        return self.pattern.padded_shape((1, 1))

    def check_shape(self, shape: Sequence[int], where: str) -> None:
        """The pattern fits the tensor seen as a matrix [..., last]."""
        self.pattern.check_shape(_as_matrix(shape), where)

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        """The projection of |x|."""
        if not x.numel():
            return torch.ones_like(x, dtype=torch.bool)
        scores = magnitudes(x).float().view(_as_matrix(x.shape))
        return self.pattern.project(scores).view(x.shape)

    def __str__(self) -> str:
        return str(self.pattern)


def _as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    last = shape[-1] if shape else 1
    return torch.Size(shape[:-1]).numel(), last
