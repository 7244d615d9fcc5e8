# SPDX-License-Identifier: Apache-2.0
"""How kept weights are stored: canonical arrays, validated at every boundary."""

from gossamer.formats.base import VALUE_DTYPES, Arrays, Format, SparseTensor
from gossamer.formats.convert import FORMATS, choose_format, pack, unpack, validate

__all__ = [
    "FORMATS",
    "VALUE_DTYPES",
    "Arrays",
    "Format",
    "SparseTensor",
    "choose_format",
    "pack",
    "unpack",
    "validate",
]
