# SPDX-License-Identifier: Apache-2.0
"""Files of numpy arrays (.npz): headers are read and bounded before an array is expanded.

Start at `open_arrays`, which gives an `ArrayFile`.
"""

from gossamer.io.safe_files.arrays.array_file import (
    FREE_BYTES,
    MAX_GROWTH,
    ArrayHeader,
    open_arrays,
)

__all__ = ["FREE_BYTES", "MAX_GROWTH", "ArrayHeader", "open_arrays"]
