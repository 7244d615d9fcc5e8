# SPDX-License-Identifier: Apache-2.0
"""Files that others may have made, files that must be whole, and the limits that they obey.

This door has the limits that every reader applies, and `listed`, which shows the first of many
faults. All arithmetic is on Python integers, so a product cannot overflow before it is compared.
Behind the door are `checks` (names, sizes, memory), `directories` (written whole or not at all),
`documents` (JSON and text), `manifests` (what lists the files of a directory), `tensors`
(safetensors files) with their `dtypes`, `on_disk` (tensors that stay in files), `arrays` (.npz
files) and `tokenizer` (the package tokenizers). Files are opened by `gossamer.named_files`.
"""

from collections.abc import Sequence

__all__ = [
    "MAX_DIM",
    "MAX_DIMS",
    "MAX_FAULTS_SHOWN",
    "MAX_HEADER_BYTES",
    "MAX_MANIFEST_BYTES",
    "MAX_TENSORS_PER_FILE",
    "MAX_TENSOR_BYTES",
    "listed",
]

MAX_DIMS = 8
MAX_DIM = 2**40
MAX_TENSOR_BYTES = 2**46
MAX_TENSORS_PER_FILE = 10**6
MAX_NAME_BYTES = 512
MAX_JSON_DEPTH = 32
# A few bytes of JSON become a Python object of 50 to 100 bytes; this bounds the amplification.
MAX_JSON_VALUES = 2**20
MAX_MANIFEST_BYTES = 64 * 2**20
# One line of a user's .jsonl file: it may hold a book, whose commas and escapes count as values.
MAX_LINE_BYTES = 256 * 2**20
MAX_LINE_VALUES = 2**22
MAX_HEADER_BYTES = 100 * 10**6
MAX_FAULTS_SHOWN = 20
DEFAULT_MAX_BYTES = 64 * 2**30


def listed(faults: Sequence[str]) -> str:
    """The first faults, one per line, and how many more there are."""
    shown = [*faults[:MAX_FAULTS_SHOWN]]
    if len(faults) > len(shown):
        shown.append(f"and {len(faults) - len(shown)} more")
    return "".join(f"\n  {line}" for line in shown)
