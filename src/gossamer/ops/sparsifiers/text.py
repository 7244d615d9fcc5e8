# SPDX-License-Identifier: Apache-2.0
"""From text to sparsifier: `threshold:0.1`, `fraction:0.9`, `per-block:0.5:8`, `2:4`, plug-ins."""

from collections.abc import Callable
from dataclasses import fields

from gossamer.errors import InputError
from gossamer.ops.sparsifiers.base import Sparsifier
from gossamer.ops.sparsifiers.ranked import (
    BlockFraction,
    ByPattern,
    PerBlockFraction,
    TensorFraction,
)
from gossamer.ops.sparsifiers.streaming import KeepAll, RandomFraction, Threshold
from gossamer.patterns import parse_pattern
from gossamer.patterns.syntax import form_of
from gossamer.patterns.text import PATTERNS
from gossamer.registry import Registry

_STUB = """\
@gossamer.register.sparsifier("{name}", scope="streaming")
def {name}(x, number):                 # "{name}:0.5" calls it with number = 0.5
    return ~(x.abs() < number)         # bool of the shape of x, True = kept; NaN stays
"""

SPARSIFIERS: Registry[Callable[[str], Sparsifier]] = Registry("sparsifier", _STUB)


def numbers_of(text: str, fewest: int, most: int) -> tuple[float, ...]:
    """The numbers behind the name in a text; InputError if there are too few or too many."""
    name, *parts = text.split(":")
    try:
        numbers = tuple(float(part) for part in parts)
    except ValueError as error:
        raise InputError(f"sparsifier {text!r}: {error}; numbers stand behind colons.") from error
    if not fewest <= len(numbers) <= most:
        wanted = fewest if fewest == most else f"{fewest} to {most}"
        raise InputError(
            f"sparsifier {text!r}: {name} takes {wanted} numbers behind colons, got {len(numbers)}."
        )
    return numbers


def _parser(kind: type[Sparsifier]) -> Callable[[str], Sparsifier]:
    count = len(fields(kind))  # type: ignore[arg-type]  # all of them are dataclasses
    return lambda text: kind(*numbers_of(text, count, count))


for _kind in (KeepAll, RandomFraction, Threshold, TensorFraction, PerBlockFraction, BlockFraction):
    SPARSIFIERS.add(_kind.name, _parser(_kind))


def parse_sparsifier(text: str) -> Sparsifier:
    """The sparsifier that `text` names; `str()` of it gives the canonical text back."""
    if isinstance(text, Sparsifier):
        return text
    if not isinstance(text, str):
        raise InputError(f"sparsifier: expected text, got {type(text).__name__}.")
    name, form = text.split(":")[0], form_of(text)
    if name not in SPARSIFIERS and form in PATTERNS:
        pattern = parse_pattern(text)
        if pattern.fixed_density is None:
            raise InputError(
                f"sparsifier {text!r}: this pattern has no density of its own. Write"
                " fraction:0.9, or block-fraction:0.9:4 for whole blocks."
            )
        found: Sparsifier = ByPattern(pattern)
    else:
        found = SPARSIFIERS.get(name)(text)
    # Written once, here: tracers take a text, but not the numbers it is made of.
    object.__setattr__(found, "text", str(found))
    return found
