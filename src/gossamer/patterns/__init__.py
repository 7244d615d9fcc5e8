# SPDX-License-Identifier: Apache-2.0
"""Which zeros are legal.

Retained magnitude at equal density, best first:
unstructured > N:16 > N:8 > N:4 ~ nmg with large g > V:N:M > block.

Names are loaded on first use, so that `gossamer.patterns.syntax` can be had without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer.patterns.base import Pattern, check_density, kept_count
    from gossamer.patterns.block import Block
    from gossamer.patterns.detect import detect_pattern
    from gossamer.patterns.nm import NM
    from gossamer.patterns.nmg import NMG
    from gossamer.patterns.text import PATTERNS, parse_pattern
    from gossamer.patterns.unstructured import Unstructured
    from gossamer.patterns.vnm import VNM

__all__ = [
    "NM",
    "NMG",
    "PATTERNS",
    "VNM",
    "Block",
    "Pattern",
    "Unstructured",
    "check_density",
    "detect_pattern",
    "kept_count",
    "parse_pattern",
]

_HOMES = {
    "NM": "nm",
    "NMG": "nmg",
    "PATTERNS": "text",
    "VNM": "vnm",
    "Block": "block",
    "Pattern": "base",
    "Unstructured": "unstructured",
    "check_density": "base",
    "detect_pattern": "detect",
    "kept_count": "base",
    "parse_pattern": "text",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gossamer.patterns' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gossamer.patterns.{home}"), name)


def __dir__() -> list[str]:
    return list(__all__)
