# SPDX-License-Identifier: Apache-2.0
"""Files in the idx format of MNIST, plain or packed by gzip: the header is read before the data."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import InputError
from gossamer.io.safe_files.arrays.array_file import FREE_BYTES, MAX_GROWTH
from gossamer.named_files import is_inside, open_inside, size_of

_UINT8 = 8
_MAX_DIMS = 4


def read_idx(folder: Path, name: str) -> np.ndarray:
    """Bytes of the file `name` in a folder, or of `name`.gz, in the shape its header says."""
    packed = not is_inside(folder, name)
    found = f"{name}.gz" if packed else name
    where = f"{folder / found}"
    with open_inside(folder, found, InputError) as file:
        stream: Any = gzip.GzipFile(fileobj=file) if packed else file
        try:
            shape = _shape(stream, where)
            wanted = int(np.prod(shape, dtype=object))
            if wanted > max(FREE_BYTES, MAX_GROWTH * size_of(file)):
                raise InputError(
                    f"{where}: {size_of(file)} bytes would become {wanted}, more than"
                    f" {MAX_GROWTH} times as many. Unpack it yourself if you trust it."
                )
            raw = stream.read(wanted + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{where}: cannot be read ({error}).") from error
    if len(raw) != wanted:
        cut = len(raw) < wanted
        follow = f"{len(raw)} follow; it was truncated" if cut else "more follow"
        raise InputError(f"{where}: its header says {shape}, {wanted} bytes, but {follow}.")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _shape(stream: Any, where: str) -> list[int]:
    start = stream.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] != _UINT8 or start[3] > _MAX_DIMS:
        raise InputError(f"{where}: is no idx file of bytes (its first bytes are {start.hex()}).")
    sizes = stream.read(4 * start[3])
    if len(sizes) != 4 * start[3]:
        raise InputError(f"{where}: ends in its header; it was truncated.")
    return [int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4)]
