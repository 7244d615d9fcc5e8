# SPDX-License-Identifier: Apache-2.0
"""Which zeros are legal: a `Pattern` says which masks are, and finds the best one for given scores.

Start with `parse_pattern("2:4")`, which makes a pattern of its text, and `Pattern.project`, which
makes a mask of scores. `detect_pattern` finds the pattern behind a mask that came without one. The
classes are the built-in patterns. Retained magnitude at equal density, best first:
`Unstructured` > `NM` with M = 16 > 8 > 4 ~ `NMG` with large g > `VNM` > `Block`.

`syntax` knows what a pattern's text says, without torch; `text` has the table of patterns, plug-ins
included; `selection` keeps the largest scores. Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.patterns.base import Pattern
    from gossamer.patterns.block import Block
    from gossamer.patterns.nm import NM
    from gossamer.patterns.nmg import NMG
    from gossamer.patterns.text import detect_pattern, parse_pattern
    from gossamer.patterns.unstructured import Unstructured
    from gossamer.patterns.vnm import VNM

__all__ = [
    "NM",
    "NMG",
    "VNM",
    "Block",
    "Pattern",
    "Unstructured",
    "detect_pattern",
    "parse_pattern",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "NM": "nm",
        "NMG": "nmg",
        "VNM": "vnm",
        "Block": "block",
        "Pattern": "base",
        "Unstructured": "unstructured",
        "detect_pattern": "text",
        "parse_pattern": "text",
    },
)
