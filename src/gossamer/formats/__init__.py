# SPDX-License-Identifier: Apache-2.0
"""The sparse weight, and how it is stored in a file.

`SparseMatrix` is what layers hold and kernels pack: `Positions` and kept values. A `Format` encodes
it as the arrays of a file and decodes them again, every index checked; it is for files only.
"""

from gossamer.formats.base import Format
from gossamer.formats.convert import FORMATS, choose_format, decode, encode
from gossamer.formats.matrix import VALUE_DTYPES, Positions, SparseMatrix, matrix_shape

__all__ = [
    "FORMATS",
    "VALUE_DTYPES",
    "Format",
    "Positions",
    "SparseMatrix",
    "choose_format",
    "decode",
    "encode",
    "matrix_shape",
]
