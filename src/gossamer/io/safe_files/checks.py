# SPDX-License-Identifier: Apache-2.0
"""What is checked before anything is allocated: names, sizes, memory.

Start at `checked_bytes` for a tensor and at `check_memory` for a file. `check_name` and
`check_file_name` give back a name that is safe to store, print and look up; `Name` and `FileName`
are the same checks as fields of a manifest.
"""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from gossamer.errors import ArtifactError, ResourceError
from gossamer.io.safe_files import (
    DEFAULT_MAX_BYTES,
    MAX_DIM,
    MAX_DIMS,
    MAX_NAME_BYTES,
    MAX_TENSOR_BYTES,
)

__all__ = [
    "FileName",
    "Name",
    "available_bytes",
    "check_file_name",
    "check_memory",
    "check_name",
    "checked_bytes",
]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


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


def _named(check: Callable[[str, str], str], name: str) -> str:
    # pydantic collects ValueError; ArtifactError is none.
    try:
        return check(name, "name")
    except ArtifactError as error:
        raise ValueError(str(error)) from error


FileName = Annotated[str, AfterValidator(partial(_named, check_file_name))]
Name = Annotated[str, AfterValidator(partial(_named, check_name))]
