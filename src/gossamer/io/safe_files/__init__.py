# SPDX-License-Identifier: Apache-2.0
"""Files that others may have made, files that must be whole, and the limits that they obey.

This door has the limits that every reader applies before it allocates anything. All arithmetic is
on Python integers, so a product cannot overflow before it is compared. Behind the door are
`directories` (written whole or not at all), `documents` (JSON and text), `tensors` (safetensors
files), `arrays` (.npz files) and `tokenizer` (the package tokenizers). Files are opened by
`gossamer.named_files`.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gossamer.errors import ArtifactError, ResourceError

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
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def listed(faults: Sequence[str]) -> str:
    """The first faults, one per line, and how many more there are."""
    shown = [*faults[:MAX_FAULTS_SHOWN]]
    if len(faults) > len(shown):
        shown.append(f"and {len(faults) - len(shown)} more")
    return "".join(f"\n  {line}" for line in shown)


def check_name(name: str, where: str) -> str:
    """Return a tensor or module name that is safe to store, print and look up."""
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise ArtifactError(f"{where}: the name {name!a} is not valid UTF-8.") from error
    if not 1 <= size <= MAX_NAME_BYTES:
        raise ArtifactError(
            f"{where}: a name must have 1 to {MAX_NAME_BYTES} bytes, got {size} ({name[:40]!a})."
        )
    if _CONTROL.search(name):
        raise ArtifactError(f"{where}: the name {name!a} has control characters.")
    if ".." in name or name.startswith(("/", "\\")):
        raise ArtifactError(
            f"{where}: the name {name!a} looks like a path; names with '..' or a leading"
            " slash are refused."
        )
    return name


def check_file_name(name: str, where: str) -> str:
    """Return `name` if it is one plain path component."""
    check_name(name, where)
    plain = all(char.isascii() and (char.isalnum() or char in "._-") for char in name)
    if not plain or name.startswith((".", "-")):
        raise ArtifactError(
            f"{where}: {name!a} is no plain file name; expected letters, digits, '.', '_' and"
            " '-' only."
        )
    return name


def checked_bytes(shape: Sequence[int], itemsize: int, where: str) -> int:
    """Bytes of a tensor, refused when a dimension or the product is out of bounds."""
    if len(shape) > MAX_DIMS:
        raise ArtifactError(f"{where}: at most {MAX_DIMS} dimensions, got {len(shape)}.")
    total = itemsize
    for size in shape:
        if not 0 <= size <= MAX_DIM:
            raise ArtifactError(f"{where}: a dimension must be in [0, 2^40], got {size}.")
        total *= size
    if total > MAX_TENSOR_BYTES:
        raise ArtifactError(
            f"{where}: shape {list(shape)} needs {total} bytes, more than the limit of"
            f" {MAX_TENSOR_BYTES}."
        )
    return total


def available_bytes() -> int:
    """Memory that can be had without swapping, at most 64 GiB; 64 GiB where nobody tells."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, DEFAULT_MAX_BYTES)
    with suppress(AttributeError, OSError, ValueError):
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min(physical, DEFAULT_MAX_BYTES)
    return DEFAULT_MAX_BYTES


def check_memory(needed: int, stored: int, max_bytes: int | None, where: str) -> None:
    """Refuse to expand `stored` bytes on disk into more memory than allowed.

    Raises:
        ResourceError: with both sizes, before anything is allocated.
    """
    limit = available_bytes() if max_bytes is None else max_bytes
    if needed > limit:
        raise ResourceError(
            f"{where}: {stored} bytes on disk would need {needed} bytes of memory, more than the"
            f" limit of {limit}. Pass max_bytes={needed} if you trust the file and have the memory."
        )
