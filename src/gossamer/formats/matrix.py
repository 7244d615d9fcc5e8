# SPDX-License-Identifier: Apache-2.0
"""The sparse weight: where its kept entries are, and what they hold.

Layers give it, kernels pack it, formats write it to files and read it back. There is one way from
a module to its sparse weight and one way back.

Legend: R rows (outputs), K columns (everything else: inputs, or inputs x kernel), n kept values.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gossamer.errors import InputError
from gossamer.formats.bits import count_bits, pack_bits, unpack_bits
from gossamer.formats.grid import Grid, Levels
from gossamer.patterns import Pattern, Unstructured

__all__ = [
    "VALUE_DTYPES",
    "Positions",
    "SparseMatrix",
    "matrix_shape",
]

# Values may be stored in these types; formats never cast.
VALUE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Positions:
    """Where the kept entries of a weight are.

    Frozen, and shared by values, gradients, moments and tied weights.

    Attributes:
        mask_bits: uint8 [R, ceil(K/8)], bit k % 8 of byte k // 8 for column k; None where
            everything is kept, so that no bits are held or stored.
        shape: of the weight in its own form; the matrix is its first dimension by all others.
        pattern: the rule the mask obeys.
    """

    mask_bits: torch.Tensor | None
    shape: tuple[int, ...]
    pattern: Pattern = field(default_factory=Unstructured)

    @classmethod
    def of_mask(
        cls, mask_RK: torch.Tensor, pattern: Pattern, shape: tuple[int, ...]
    ) -> "Positions":
        """Those of a bool mask [R, K]."""
        return cls(None if bool(mask_RK.all()) else pack_bits(mask_RK), shape, pattern)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """[R, K] of the weight seen as a matrix."""
        return matrix_shape(self.shape)

    @property
    def numel(self) -> int:
        """Entries of the weight, kept or not."""
        return torch.Size(self.shape).numel()

    @property
    def nnz(self) -> int:
        """Kept entries, counted."""
        return self.numel if self.mask_bits is None else count_bits(self.mask_bits)

    def bits(self) -> torch.Tensor:
        """The packed mask, made up where none is held."""
        return pack_bits(self.mask()) if self.mask_bits is None else self.mask_bits

    def mask(self) -> torch.Tensor:
        """The mask, bool [R, K]."""
        if self.mask_bits is None:
            return torch.ones(self.matrix_shape, dtype=torch.bool)
        return unpack_bits(self.mask_bits, self.matrix_shape[1])

    @functools.cached_property
    def digest(self) -> str:
        """sha256 (hex) of shape and mask: equal on two ranks or in two files iff the mask is."""
        digest = hashlib.sha256("{}x{}:".format(*self.matrix_shape).encode())
        digest.update(self.bits().detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class SparseMatrix:
    """Positions and the kept values, row by row: a view of a Parameter, never a copy of it.

    Attributes:
        positions: where they are.
        values: [n] in row-major order; integer codes if `levels` says what they stand for.
        levels: of codes; None where values are the numbers themselves.
    """

    positions: Positions
    values: torch.Tensor
    levels: Levels | None = None

    @classmethod
    def from_dense(
        cls,
        weight: torch.Tensor,
        mask: torch.Tensor | None = None,
        pattern: Pattern | None = None,
    ) -> "SparseMatrix":
        """The entries of `weight` that the mask [R, K] keeps; without one, those that are not zero.

        The mask is authoritative: a kept value may be 0, -0.0, Inf or NaN and stays as it is.
        """
        if weight.ndim < 2 or weight.dtype not in VALUE_DTYPES:
            names = ", ".join(str(d).removeprefix("torch.") for d in VALUE_DTYPES)
            raise InputError(
                f"weight: expected 2 or more dimensions [out, in, ...] of {names}; got"
                f" {weight.dtype} of shape {list(weight.shape)}."
            )
        weight_RK = weight.detach().flatten(1)
        mask = weight_RK != 0 if mask is None else mask
        if mask.shape != weight_RK.shape or mask.device != weight.device:
            raise InputError(
                f"mask: must have the weight's shape {list(weight_RK.shape)} and device"
                f" {weight.device}; got {list(mask.shape)} on {mask.device}."
            )
        pattern = Unstructured() if pattern is None else pattern
        pattern.check_shape(matrix_shape(tuple(weight.shape)))
        pattern.validate(mask)
        return cls(Positions.of_mask(mask, pattern, tuple(weight.shape)), weight_RK[mask])

    @property
    def shape(self) -> tuple[int, int]:
        """[R, K] of the weight seen as a matrix."""
        return self.positions.matrix_shape

    @property
    def pattern(self) -> Pattern:
        """The rule the mask obeys."""
        return self.positions.pattern

    @property
    def nnz(self) -> int:
        """Kept entries."""
        return self.values.numel()

    @property
    def density(self) -> float:
        """Kept fraction; 1 for a weight without entries."""
        return self.nnz / self.positions.numel if self.positions.numel else 1.0

    def mask(self) -> torch.Tensor:
        """The mask, bool [R, K]."""
        return self.positions.mask().to(self.values.device)

    def floats(self) -> torch.Tensor:
        """The kept values as numbers, codes decoded."""
        levels = self.levels
        if levels is None:
            return self.values
        mask_RK, columns = self.mask(), self.shape[1]
        numbers = self.values.float() * levels.grid.spread(levels.scales, columns)[mask_RK]
        if levels.offsets is None:
            return numbers
        return numbers + levels.grid.spread(levels.offsets, columns)[mask_RK]

    def dense(self) -> torch.Tensor:
        """A copy of the weight in its own shape, exact zeros (+0.0) where nothing is kept."""
        values = self.floats()
        if self.positions.mask_bits is None:
            return values.clone().view(self.positions.shape)
        dense_RK = values.new_zeros(self.shape).masked_scatter_(self.mask(), values)
        return dense_RK.view(self.positions.shape)

    def on_levels(self, grid: Grid) -> "SparseMatrix":
        """The same with integer codes for values that are on the grid to the last bit."""
        codes_RK, scales_RG, _ = grid.encode(self.dense().flatten(1))
        return SparseMatrix(self.positions, codes_RK[self.mask()], Levels(grid, scales_RG))

    @staticmethod
    def stack(parts: Sequence["SparseMatrix"]) -> "SparseMatrix":
        """Matrices with the same columns as one, rows behind one another; they may differ in n."""
        if len(parts) == 1:
            return parts[0]
        patterns = {part.pattern for part in parts}
        full = all(part.positions.mask_bits is None for part in parts)
        bits = None if full else torch.cat([part.positions.bits() for part in parts])
        shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        pattern = patterns.pop() if len(patterns) == 1 else Unstructured()
        values = torch.cat([part.floats() for part in parts])
        return SparseMatrix(Positions(bits, shape, pattern), values)

    def unstack(self, num_parts: int) -> list["SparseMatrix"]:
        """Equally many rows each, behind one another; views, which may differ in n."""
        rows, columns = self.shape[0] // num_parts, self.shape[1]
        bits, pattern = self.positions.mask_bits, self.pattern
        if bits is None:
            masks: list[torch.Tensor | None] = [None] * num_parts
            counts = [rows * columns] * num_parts
        else:
            masks = [bits[start : start + rows] for start in range(0, num_parts * rows, rows)]
            counts = [count_bits(mask) for mask in masks if mask is not None]
        return [
            SparseMatrix(Positions(mask, (rows, columns), pattern), values)
            for mask, values in zip(masks, torch.split(self.floats(), counts), strict=True)
        ]


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """[R, K] of a weight of this shape: its first dimension by all others."""
    return shape[0], torch.Size(shape[1:]).numel()
