# SPDX-License-Identifier: Apache-2.0
"""What a packed engine holds for: if any of it differs, it is another engine."""

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gossamer.errors import GossamerError
from gossamer.named_files import open_inside, open_named
from gossamer.ops import _native
from gossamer.ops.kernels import active_kernels, available_extensions

# Counted up when the files, or what is made of models, changes.
_FORMAT = 1
# What readers of models open: everything else in a folder is for somebody else.
_READ: tuple[str, ...] = (".json", ".safetensors", ".jinja", ".txt", ".model", ".arrays")
_BESIDE: tuple[str, ...] = (".json", ".jinja")
_MAX_FILES = 4096
_PART = 1 << 20


@dataclass(frozen=True)
class Identity:
    """Of a packed engine.

    Attributes:
        files: digest of the content of every file that its model was read from.
        asked: how it was asked for, plain data.
    """

    files: str
    asked: dict[str, Any]

    def told(self) -> dict[str, Any]:
        """All that must be the same, as plain data."""
        packer = {
            "format": _FORMAT,
            "native": native_digest(),
            "kernels": active_kernels(),
            "extensions": list(available_extensions()),
        }
        return {"files": self.files, "asked": self.asked, "packer": packer}

    @property
    def key(self) -> str:
        """A name for it."""
        return hashlib.sha256(json.dumps(self.told(), sort_keys=True).encode()).hexdigest()


@functools.cache
def native_digest() -> str:
    """Of the native module, which has no version of its own that would change with each build."""
    with Path(str(_native.__file__)).open("rb") as file:
        return _digest(file)


def files_digest(path: Path) -> str | None:
    """SHA-256 of the names and contents of all files that a model at `path` is read from.

    Contents, not times: a file that was changed and given its old time is another one. None where
    there is nothing to read, or where something may not be read: whoever loads it says why.
    """
    whole = hashlib.sha256()
    try:
        for name, file in _files(path):
            with file:
                whole.update(f"{name}\0{_digest(file)}\n".encode())
    except (GossamerError, OSError):
        return None
    return whole.hexdigest()


def _digest(file: BinaryIO) -> str:
    found = hashlib.sha256()
    while part := file.read(_PART):
        found.update(part)
    return found.hexdigest()


def _files(path: Path) -> Iterator[tuple[str, BinaryIO]]:
    """A file and what lies beside it; or all of a folder, and of the folders in it."""
    if path.is_dir():
        folder, endings = path, _READ
        below = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        inside = [f"{name}/{entry.name}" for name in below for entry in os.scandir(folder / name)]
    else:
        yield path.name, open_named(path)
        folder, endings, inside = path.parent, _BESIDE, []
    names = sorted([*inside, *(entry.name for entry in os.scandir(folder))])
    read = [name for name in names if name.endswith(endings) and (folder / name).is_file()]
    if len(read) > _MAX_FILES:
        raise OSError("too many files")
    for name in read:
        yield name, open_inside(folder, name)
