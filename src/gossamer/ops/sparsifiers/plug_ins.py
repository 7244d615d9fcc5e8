# SPDX-License-Identifier: Apache-2.0
"""A sparsifier made of a function from a tensor and numbers to a mask."""

import inspect
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from gossamer.errors import InputError
from gossamer.ops.sparsifiers.base import SCOPES, Scope, Sparsifier, whole_blocks
from gossamer.ops.sparsifiers.text import SPARSIFIERS, numbers_of

Mask = Callable[..., torch.Tensor]


class _ByFunction(Sparsifier):
    """Of one name; `by_function` makes a subclass that says its scope."""

    function: ClassVar[Mask]
    entries: ClassVar[int] = 1

    def __init__(self, numbers: tuple[float, ...]) -> None:
        self._numbers = numbers

    @property
    def numbers(self) -> tuple[float, ...]:
        return self._numbers

    @property
    def block(self) -> tuple[int, int]:
        return 1, self.entries

    def check_shape(self, shape: Sequence[int], where: str) -> None:
        whole_blocks(self.entries, shape, where, str(self))

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        return type(self).function(x, *self.numbers)


def by_function(
    name: str, function: Mask, scope: Scope, block: int = 1, is_random: bool = False
) -> None:
    """Let `name:number:...` be the sparsifier whose mask is `function(x, number, ...)`."""
    if scope not in SCOPES:
        raise InputError(
            f"sparsifier {name!r}: scope is one of {', '.join(SCOPES)}; got {scope!r}."
        )
    parameters = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    fewest = sum(each.default is inspect.Parameter.empty for each in parameters) - 1

    about = {"name": name, "scope": scope, "is_random": is_random, "entries": block}
    kind = type("_ByFunction", (_ByFunction,), {**about, "function": staticmethod(function)})

    def parse(text: str) -> Sparsifier:
        made: Sparsifier = kind(numbers_of(text, fewest, len(parameters) - 1))
        return made

    SPARSIFIERS.add(name, parse)
