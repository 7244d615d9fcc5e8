# SPDX-License-Identifier: Apache-2.0
"""Files that others may have made, files that must be whole, and the limits that they obey.

This door has the limits that every reader applies before it allocates anything. Behind it are
`directories` (written whole or not at all), `documents` (JSON and text), `tensors` (safetensors
files), `arrays` (.npz files) and `tokenizer` (the package tokenizers). Files are opened by
`gossamer.named_files`.
"""

from gossamer.io.safe_files.limits import (
    MAX_DIM,
    MAX_DIMS,
    MAX_FAULTS_SHOWN,
    MAX_HEADER_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_TENSOR_BYTES,
    MAX_TENSORS_PER_FILE,
    available_bytes,
    check_file_name,
    check_memory,
    check_name,
    checked_bytes,
    listed,
)

__all__ = [
    "MAX_DIM",
    "MAX_DIMS",
    "MAX_FAULTS_SHOWN",
    "MAX_HEADER_BYTES",
    "MAX_MANIFEST_BYTES",
    "MAX_TENSORS_PER_FILE",
    "MAX_TENSOR_BYTES",
    "available_bytes",
    "check_file_name",
    "check_memory",
    "check_name",
    "checked_bytes",
    "listed",
]
