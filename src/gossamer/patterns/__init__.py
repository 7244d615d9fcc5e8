# SPDX-License-Identifier: Apache-2.0
"""Which zeros are legal.

Retained magnitude at equal density, best first: unstructured > N:16 > N:8 > N:4 ~ nmg with large g > V:N:M > block.
"""

from gossamer.patterns.base import Pattern, check_density, kept_count
from gossamer.patterns.text import PATTERNS, parse_pattern
from gossamer.patterns.unstructured import Unstructured

__all__ = [
    "PATTERNS",
    "Pattern",
    "Unstructured",
    "check_density",
    "kept_count",
    "parse_pattern",
]
