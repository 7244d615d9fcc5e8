# SPDX-License-Identifier: Apache-2.0
"""Checks for constructor arguments, which for a saved model come from an untrusted manifest."""

from collections.abc import Iterable

from gossamer.errors import InputError

# What a manifest can hold for one argument.
ZooArgs = dict[str, bool | int | float | str | tuple[int, ...] | None]

MAX_SIZE = 2**31 - 1


def check_size(where: str, value: int, *, low: int = 1, high: int = MAX_SIZE) -> int:
    """`value` if it is an integer in [low, high]."""
    if type(value) is not int or not low <= value <= high:
        raise InputError(f"{where}: must be an integer in [{low}, {high}], got {value!r}.")
    return value


def check_choice(where: str, value: str, choices: Iterable[str]) -> str:
    """`value` if it is one of `choices`."""
    names = list(choices)
    if value not in names:
        raise InputError(f"{where}: must be one of {', '.join(names)}; got {value!r}.")
    return value
