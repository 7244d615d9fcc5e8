# SPDX-License-Identifier: Apache-2.0
"""Numbers of a few bits packed into bytes, row by row, lowest bits first; spare bits are zero.

A mask is such numbers of one bit: `pack_bits` and `unpack_bits`. `pack_fields` and `unpack_fields`
are for positions and codes of 2, 4 or 8 bits.
"""

from gossamer.formats.bits.fields import check_spare_bits, pack_fields, row_bytes, unpack_fields
from gossamer.formats.bits.masks import check_bits, count_bits, pack_bits, unpack_bits

__all__ = [
    "check_bits",
    "check_spare_bits",
    "count_bits",
    "pack_bits",
    "pack_fields",
    "row_bytes",
    "unpack_bits",
    "unpack_fields",
]
