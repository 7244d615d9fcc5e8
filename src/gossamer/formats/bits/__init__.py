# SPDX-License-Identifier: Apache-2.0
"""Numbers of a few bits packed into bytes, row by row, lowest bits first; spare bits are zero.

A mask is such numbers of one bit: `pack_bits` and `unpack_bits`. `pack_fields` and `unpack_fields`
are for positions and codes of 2, 4 or 8 bits.
"""

from gossamer.formats.bits.packing import (
    check_bits,
    check_spare_bits,
    count_bits,
    pack_bits,
    pack_fields,
    row_bytes,
    unpack_bits,
    unpack_fields,
)

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
