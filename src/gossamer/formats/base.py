# SPDX-License-Identifier: Apache-2.0
"""What a format is: canonical, portable arrays for the kept weights of one matrix.

Legend: R rows (outputs), K columns (inputs). Arrays are what files hold; kernels derive their own
layouts from them and never write those to disk.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar

import torch

from gossamer.errors import FormatError, PatternError
from gossamer.formats.matrix import VALUE_DTYPES, Positions, SparseMatrix
from gossamer.patterns import Pattern

P = TypeVar("P", bound=Pattern)
Arrays = Mapping[str, torch.Tensor]

# What `encode` and `decode` take besides: the codes of weights on integer levels.
STORED_DTYPES = (*VALUE_DTYPES, torch.int8)


class Format(ABC):
    """How a sparse matrix is stored in a file. One instance serves every weight: no state."""

    name: ClassVar[str]

    @abstractmethod
    def supports(self, pattern: Pattern) -> bool:
        """Whether every mask legal under `pattern` can be stored."""

    @abstractmethod
    def encode(self, matrix: SparseMatrix) -> dict[str, torch.Tensor]:
        """Arrays of the kept values, under "values", and of their positions.

        The mask is legal and authoritative: a kept value may be 0, -0.0, Inf or NaN and is stored
        as it is.
        """

    @abstractmethod
    def decode(
        self, arrays: Arrays, shape: tuple[int, ...], pattern: Pattern, where: str = "tensor"
    ) -> SparseMatrix:
        """The matrix behind the arrays of a file; FormatError unless they are valid.

        Checks names, dtypes, lengths, every index in range and in order. One pass, O(nnz), no
        allocation of the dense size beyond a bool mask.
        """

    @abstractmethod
    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Bytes that `encode` will use, by formula."""


class OwnFormat(Format, Generic[P]):
    """A format that was made for the masks of one class of patterns.

    Attributes:
        own: that class.
        stores: what people call its patterns.
    """

    own: type[P]
    stores: ClassVar[str]

    def supports(self, pattern: Pattern) -> bool:
        """Patterns of that class only."""
        return isinstance(pattern, self.own)

    def checked(self, pattern: Pattern) -> P:
        """The pattern; FormatError for another one."""
        if not isinstance(pattern, self.own):
            raise FormatError(
                f"format {self.name} stores {self.stores} patterns only, got {pattern}."
            )
        return pattern


def expect_array(
    arrays: Arrays,
    name: str,
    dtypes: tuple[torch.dtype, ...],
    shape: tuple[int | None, ...],
    where: str,
) -> torch.Tensor:
    """The array called `name` if dtype and shape agree (None = any size); FormatError otherwise."""
    if name not in arrays:
        raise FormatError(f"{where}: array {name!r} is missing; found {sorted(arrays)}.")
    array = arrays[name]
    if array.dtype not in dtypes:
        names = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise FormatError(f"{where}: array {name!r} must be {names}, got {array.dtype}.")
    fits = array.ndim == len(shape) and all(
        want is None or want == got for want, got in zip(shape, array.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise FormatError(
            f"{where}: array {name!r} must have shape [{wanted}], got {list(array.shape)}."
        )
    return array


def expect_only(arrays: Arrays, names: tuple[str, ...], where: str) -> None:
    """Refuse arrays that the format does not know: they would be lost on the next save."""
    unknown = sorted(set(arrays) - set(names))
    if unknown:
        raise FormatError(f"{where}: unknown arrays {unknown}; this format has {list(names)}.")


def expect_arrays(
    arrays: Arrays,
    where: str,
    **expected: tuple[tuple[torch.dtype, ...], tuple[int | None, ...]],
) -> tuple[torch.Tensor, ...]:
    """All arrays of a format and no others; each name has its dtypes and its shape."""
    expect_only(arrays, tuple(expected), where)
    return tuple(expect_array(arrays, name, *rules, where) for name, rules in expected.items())


def with_mask(
    values: torch.Tensor, mask_RK: torch.Tensor, shape: tuple[int, ...], pattern: Pattern
) -> SparseMatrix:
    """The matrix of row-major values [..., n] and a mask that is known to be legal."""
    return SparseMatrix(Positions.of_mask(mask_RK, pattern, shape), values.reshape(-1))


def check_mask_is_legal(mask_RK: torch.Tensor, pattern: Pattern, where: str) -> None:
    """Raise FormatError where stored positions break the pattern they claim to have."""
    try:
        pattern.validate(mask_RK, where)
    except PatternError as error:
        raise FormatError(str(error)) from error
