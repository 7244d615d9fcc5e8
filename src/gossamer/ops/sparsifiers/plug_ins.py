# SPDX-License-Identifier: Apache-2.0
"""A sparsifier made of a function from a tensor and numbers to a mask."""

import inspect
from collections.abc import Callable, Sequence

import torch

from gossamer.errors import InputError
from gossamer.ops.sparsifiers.base import SCOPES, Scope, Sparsifier, as_text, whole_blocks
from gossamer.ops.sparsifiers.text import SPARSIFIERS, numbers_of

Mask = Callable[..., torch.Tensor]


class _ByFunction(Sparsifier):
    def __init__(
        self,
        function: Mask,
        called: str,
        numbers: tuple[float, ...],
        scope: Scope,
        entries: int,
        is_random: bool,
    ) -> None:
        self.function, self.called, self.numbers = function, called, numbers
        self.scope, self.entries, self.is_random = scope, entries, is_random

    def check_shape(self, shape: Sequence[int], where: str) -> None:
        whole_blocks(self.entries, shape, where, str(self))

    @property
    def block(self) -> tuple[int, int]:
        return 1, self.entries

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.numbers)

    def __str__(self) -> str:
        return as_text(self.called, self.numbers)


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

    def parse(text: str) -> Sparsifier:
        numbers = numbers_of(text, fewest, len(parameters) - 1)
        return _ByFunction(function, name, numbers, scope, block, is_random)

    SPARSIFIERS.add(name, parse)
