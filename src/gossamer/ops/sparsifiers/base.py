# SPDX-License-Identifier: Apache-2.0
"""What a sparsifier of intermediate tensors is."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import Field, fields, is_dataclass
from typing import Any, ClassVar, Literal

import torch

from gossamer.errors import InputError

Scope = Literal["streaming", "blocking", "materialising"]
SCOPES = ("streaming", "blocking", "materialising")


class Sparsifier(ABC):
    """Says which entries of a tensor stay; the others become zero.

    Subclasses are frozen dataclasses whose fields are the numbers of their text.

    Attributes:
        name: the part of the text before its numbers.
        scope: what `mask` must see at a time: single entries ("streaming"), whole blocks
            ("blocking") or the whole tensor ("materialising").
        is_random: whether two calls may give two masks.
        text: what `parse_sparsifier` made it of, in canonical form.
    """

    name: ClassVar[str] = ""
    scope: ClassVar[Scope] = "streaming"
    is_random: ClassVar[bool] = False
    text: str

    @abstractmethod
    def mask(self, x: torch.Tensor) -> torch.Tensor:
        """Bool of the shape of x, True = kept. NaN is kept: nothing hides it."""

    @property
    def numbers(self) -> tuple[float, ...]:
        """What stands behind the name in the text: the fields of a dataclass."""
        held: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        return tuple(getattr(self, each.name) for each in held)

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns that a blocking one must see together, x as a matrix [..., last]."""
        return 1, 1

    def apply(self, x: torch.Tensor) -> torch.Tensor | None:
        """The sparse tensor in one pass that tracers can follow; None: it is made of the mask."""
        return None

    def check_shape(self, shape: Sequence[int], where: str) -> None:  # noqa: B027  (all fit)
        """InputError if a tensor of this shape cannot be made sparse; the base takes all."""

    def __str__(self) -> str:
        return as_text(self.name, self.numbers)


def as_text(name: str, numbers: Iterable[float]) -> str:
    """`name:number:...` to the last bit."""
    exact = (str(int(number)) if number == int(number) else repr(number) for number in numbers)
    return ":".join([name, *exact])


def fraction_in_range(fraction: float, name: str) -> float:
    """The fraction to drop; InputError outside of [0, 1]."""
    if not 0.0 <= fraction <= 1.0:
        raise InputError(f"sparsifier {name}: the fraction to drop is in [0, 1], got {fraction:g}.")
    return fraction


def magnitudes(x: torch.Tensor) -> torch.Tensor:
    """Scores that can be ranked: |x|, NaN above everything, so that it is kept and seen."""
    return x.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)


def whole_blocks(width: int, shape: Sequence[int], where: str, text: str) -> None:
    """InputError if blocks of `width` entries do not divide the last dimension."""
    last = shape[-1] if shape else 1
    if last % width:
        raise InputError(
            f"{where}: {text} needs a last dimension divisible by {width}, got {list(shape)}."
            f" Choose a block that divides {last}."
        )
