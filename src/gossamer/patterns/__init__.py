# SPDX-License-Identifier: Apache-2.0
"""Which zeros are legal: patterns of weights, their texts and their masks.

Retained magnitude at equal density, best first:
unstructured > N:16 > N:8 > N:4 ~ nmg with large g > V:N:M > block.

Start with `parse_pattern("2:4")` and `Pattern.project`. Names are loaded on first use: what a
pattern's text says (`read_builtin`) is known without torch.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.patterns.base import Pattern, check_mask, kept_count
    from gossamer.patterns.block import Block
    from gossamer.patterns.nm import NM
    from gossamer.patterns.nmg import NMG
    from gossamer.patterns.select import keep_largest
    from gossamer.patterns.syntax import (
        LEGAL_FORMS,
        NUM_KEPT,
        NUM_SHARED,
        PatternText,
        form_of,
        read_builtin,
    )
    from gossamer.patterns.text import PATTERNS, detect_pattern, parse_pattern
    from gossamer.patterns.unstructured import Unstructured
    from gossamer.patterns.vnm import VNM

__all__ = [
    "LEGAL_FORMS",
    "NM",
    "NMG",
    "NUM_KEPT",
    "NUM_SHARED",
    "PATTERNS",
    "VNM",
    "Block",
    "Pattern",
    "PatternText",
    "Unstructured",
    "check_mask",
    "detect_pattern",
    "form_of",
    "keep_largest",
    "kept_count",
    "parse_pattern",
    "read_builtin",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "LEGAL_FORMS": "syntax",
        "NM": "nm",
        "NMG": "nmg",
        "NUM_KEPT": "syntax",
        "NUM_SHARED": "syntax",
        "PATTERNS": "text",
        "VNM": "vnm",
        "Block": "block",
        "Pattern": "base",
        "PatternText": "syntax",
        "Unstructured": "unstructured",
        "check_mask": "base",
        "detect_pattern": "text",
        "form_of": "syntax",
        "keep_largest": "select",
        "kept_count": "base",
        "parse_pattern": "text",
        "read_builtin": "syntax",
    },
)
