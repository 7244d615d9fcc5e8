# SPDX-License-Identifier: Apache-2.0
"""What a format is: canonical, portable arrays for the kept weights of one matrix.

Legend: R rows (outputs), K columns (inputs). Arrays are what files hold; kernels derive their own
layouts from them and never write those to disk.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from gossamer.errors import FormatError, PatternError
from gossamer.patterns.base import Pattern

Arrays = Mapping[str, torch.Tensor]

# Values may be stored in these types; formats never cast.
VALUE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class SparseTensor:
    """A sparse matrix [R, K] in one format. Build it with `formats.pack`, which validates."""

    shape: tuple[int, int]
    pattern: Pattern
    format: str
    arrays: Arrays

    @property
    def values(self) -> torch.Tensor:
        """The kept values, in the format's own arrangement."""
        return self.arrays["values"]

    @property
    def nnz(self) -> int:
        """Kept weights: every format stores exactly these."""
        return self.values.numel()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.numel() * array.element_size() for array in self.arrays.values())


class Format(ABC):
    """Four functions on arrays. A format keeps no state; one instance serves every tensor."""

    name: ClassVar[str]

    @abstractmethod
    def supports(self, pattern: Pattern) -> bool:
        """Whether every mask legal under `pattern` can be stored."""

    @abstractmethod
    def pack(
        self, weight_RK: torch.Tensor, mask_RK: torch.Tensor, pattern: Pattern
    ) -> dict[str, torch.Tensor]:
        """Arrays of the kept values and their positions.

        The mask is legal and authoritative: a kept value may be 0, -0.0, Inf or NaN and is stored
        as it is.
        """

    @abstractmethod
    def validate(
        self, arrays: Arrays, shape: tuple[int, int], pattern: Pattern, where: str = "tensor"
    ) -> None:
        """Raise FormatError unless `unpack` is safe.

        Checks names, dtypes, lengths, every index in range and in order. One pass, O(nnz), no
        allocation of the dense size beyond a bool mask.
        """

    @abstractmethod
    def unpack(
        self, arrays: Arrays, shape: tuple[int, int], pattern: Pattern
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(weight, mask) with exact zeros where the mask is False. Arrays must be valid."""

    @abstractmethod
    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Bytes that `pack` will use, by formula."""


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


def check_mask_is_legal(mask_RK: torch.Tensor, pattern: Pattern, where: str) -> None:
    """Raise FormatError where stored positions break the pattern they claim to have."""
    try:
        pattern.validate(mask_RK, where)
    except PatternError as error:
        raise FormatError(str(error)) from error
