# SPDX-License-Identifier: Apache-2.0
"""Fractions as people type them: 0.9, or 90%."""

import re

__all__ = [
    "is_percentage",
    "parse_fraction",
]

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_FRACTION = re.compile(rf"\s*({_NUMBER})\s*(%?)\s*")


def parse_fraction(text: str) -> float | None:
    """The number of `0.9`, `.9` or `90%`; None if it is neither. Its range is not looked at."""
    found = _FRACTION.fullmatch(text)
    if found is None:
        return None
    number = float(found[1])
    # As people would write it: 0.07, not 0.07000000000000001.
    return round(number / 100, 15) if found[2] else number


def is_percentage(text: str) -> bool:
    """Whether `text` is a number with a % behind it."""
    return parse_fraction(text) is not None and text.rstrip().endswith("%")
