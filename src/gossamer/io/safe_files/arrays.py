# SPDX-License-Identifier: Apache-2.0
"""Files of numpy arrays (.npz): headers are read and bounded before an array is expanded.

Start at `open_arrays`, which gives an `ArrayFile`.
"""

import math
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from gossamer.errors import GossamerError, InputError, ResourceError
from gossamer.io.safe_files import MAX_DIMS
from gossamer.io.safe_files.checks import available_bytes
from gossamer.named_files import open_named, size_of

__all__ = ["FREE_BYTES", "MAX_GROWTH", "ArrayFile", "ArrayHeader", "open_arrays"]

# Arrays up to this size may be packed as densely as they like; larger ones are bounded.
FREE_BYTES = 256 * 2**20
# Images of people pack 2 to 20 times; deflate's own limit is 1032.
MAX_GROWTH = 100
MAX_ARRAYS = 1000
_SUFFIX = ".npy"
_CHUNK = 1 << 20
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1


@dataclass(frozen=True)
class ArrayHeader:
    """What an array will be; the same attributes as it has."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.size * self.dtype.itemsize


class ArrayFile:
    """The arrays of an open .npz file."""

    def __init__(self, packed: zipfile.ZipFile, file_size: int, where: str) -> None:
        self._packed, self._file_size, self._where = packed, file_size, where
        self._entries = {entry.filename.removesuffix(_SUFFIX): entry for entry in packed.infolist()}
        if len(self._entries) != len(packed.infolist()) or len(self._entries) > MAX_ARRAYS:
            raise InputError(f"{where}: an array appears twice, or there are over {MAX_ARRAYS}.")

    @property
    def names(self) -> list[str]:
        """Names of all arrays."""
        return list(self._entries)

    def header(self, name: str) -> ArrayHeader:
        """Type and shape of an array; nothing else of it is expanded."""
        with self._opened(name) as stream:
            return self._header(stream, name)

    def read(self, *headers: ArrayHeader) -> list[np.ndarray]:
        """The arrays behind headers that were found good."""
        total = sum(header.nbytes for header in headers)
        if total > max(FREE_BYTES, MAX_GROWTH * self._file_size):
            raise ResourceError(
                f"{self._where}: {self._file_size} bytes would become {total}, more than"
                f" {MAX_GROWTH} times as many. If you trust the file, write it with numpy.savez,"
                " which does not compress."
            )
        # As float32, once more for what is computed from them, and one byte for what is finite.
        needed = total + sum(9 * header.size for header in headers)
        if needed > available_bytes():
            raise ResourceError(
                f"{self._where}: its arrays need {needed} bytes of memory,"
                f" {available_bytes()} are free. Give a part of them."
            )
        return [self._read(header) for header in headers]

    def _read(self, header: ArrayHeader) -> np.ndarray:
        with self._opened(header.name) as stream:
            self._header(stream, header.name)
            data, filled = np.empty(header.nbytes, np.uint8), 0
            while filled < len(data):
                count = stream.readinto(data[filled : filled + _CHUNK])  # type: ignore[attr-defined]
                if not count:
                    raise InputError(f"{self._where}: {header.name} ended early.")
                filled += count
            # The checksum is compared when the end is seen.
            if stream.read(1):
                raise InputError(f"{self._where}: {header.name} goes on behind its end.")
        order: Any = "F" if header.fortran else "C"
        return data.view(header.dtype).reshape(header.shape, order=order)

    def _opened(self, name: str) -> IO[bytes]:
        entry = self._entries[name]
        if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _PACKINGS:
            raise InputError(
                f"{self._where}: {name} is encrypted or packed in an unusual way. Write it with"
                " numpy.savez or numpy.savez_compressed."
            )
        return self._packed.open(entry)

    def _header(self, stream: Any, name: str) -> ArrayHeader:
        """Leaves the stream at the first byte of data."""
        where = f"{self._where}: {name}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            version = np.lib.format.read_magic(stream)
            if version not in ((1, 0), (2, 0)):
                raise InputError(f"{where}: version {version} of .npy is not known.")
            read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
            shape, fortran, dtype = read(stream)
        if len(shape) > MAX_DIMS or any(type(size) is not int or size < 0 for size in shape):
            raise InputError(f"{where}: its shape {ascii(shape)[:80]} cannot be.")
        if dtype.hasobject or dtype.names or dtype.subdtype or not dtype.itemsize:
            raise InputError(f"{where}: {ascii(str(dtype))[:60]} cannot be read; expected numbers.")
        header = ArrayHeader(name, dtype, shape, bool(fortran))
        stored = self._entries[name].file_size - stream.tell()
        if header.nbytes != stored:
            raise InputError(
                f"{where}: {dtype} {list(shape)} takes {header.nbytes} bytes, but {stored} follow."
            )
        return header


@contextmanager
def open_arrays(path: Path, expected: str) -> Iterator[ArrayFile]:
    """The arrays of a .npz file that the user named.

    Args:
        path: the file.
        expected: a sentence that ends every message about a file that cannot be read.
    """
    with open_named(path, InputError) as file:
        try:
            with zipfile.ZipFile(file) as packed:
                yield ArrayFile(packed, size_of(file), str(path))
        except GossamerError:
            raise
        # zipfile and numpy's reader of headers raise whatever the bytes lead them to: ValueError,
        # BadZipFile, NotImplementedError, tokenize.TokenError, struct.error, SyntaxError and more.
        except Exception as error:
            if isinstance(error, MemoryError):
                raise ResourceError(f"{path}: its arrays do not fit into memory.") from error
            known = isinstance(error, OSError | ValueError | zipfile.BadZipFile | zlib.error)
            detail = f"{error}" if known else f"{type(error).__name__}: {error}"
            raise InputError(
                f"{path}: cannot be read ({ascii(detail)[1:-1][:120]}). {expected}"
            ) from error
