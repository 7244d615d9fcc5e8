# SPDX-License-Identifier: Apache-2.0
"""Safetensors files: a header that is checked first, tensors that are hashed as they are read.

Start at `read_header` and `read_tensors` to read, at `write_file` to write.
"""

from gossamer.io.safe_files.tensors.tensor_file import (
    HashingFile,
    check_hash,
    header_bytes,
    read_tensors,
    write_file,
    write_tensors,
)
from gossamer.io.safe_files.tensors.tensor_header import (
    DTYPE_CODES,
    DTYPE_NAMES,
    StoredTensor,
    TensorHeader,
    dtype_name,
    read_header,
)

__all__ = [
    "DTYPE_CODES",
    "DTYPE_NAMES",
    "HashingFile",
    "StoredTensor",
    "TensorHeader",
    "check_hash",
    "dtype_name",
    "header_bytes",
    "read_header",
    "read_tensors",
    "write_file",
    "write_tensors",
]
