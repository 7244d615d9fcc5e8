# SPDX-License-Identifier: Apache-2.0
"""Which zeros are legal.

Retained magnitude at equal density, best first:
unstructured > N:16 > N:8 > N:4 ~ nmg with large g > V:N:M > block.
"""

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
