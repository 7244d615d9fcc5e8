# SPDX-License-Identifier: Apache-2.0
"""The sparse weight, and how it is stored in a file.

`SparseMatrix` is what layers hold and kernels pack: `Positions` and kept values. A `Format` encodes
it as the `Arrays` of a file and decodes them again, every index checked; it is for files only.
`FORMATS` has all of them by name, plug-ins included. `encode` takes the smallest one that is legal
(`choose_format`) if none is named, and `decode` goes back.

`matrix` is the weight itself, `bits` packs masks, `grid` holds weights on integer levels.
"""

from gossamer.formats.base import Arrays, Format
from gossamer.formats.convert import FORMATS, choose_format, decode, encode
from gossamer.formats.matrix import Positions, SparseMatrix

__all__ = [
    "FORMATS",
    "Arrays",
    "Format",
    "Positions",
    "SparseMatrix",
    "choose_format",
    "decode",
    "encode",
]
