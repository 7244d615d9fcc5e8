# SPDX-License-Identifier: Apache-2.0
"""Safetensors files: a header that is checked first, tensors that are hashed as they are read.

Start at `read_header` and `read_tensors` to read, at `write_file` to write.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import torch

from gossamer.errors import ArtifactError
from gossamer.io.safe_files import MAX_HEADER_BYTES, MAX_TENSORS_PER_FILE
from gossamer.io.safe_files.checks import check_name, checked_bytes
from gossamer.io.safe_files.documents import parse_json
from gossamer.io.safe_files.dtypes import DTYPE_CODES, DTYPES, dtype_name
from gossamer.io.safe_files.manifests import FileEntry
from gossamer.io.safe_files.on_disk import map_tensors

__all__ = [
    "StoredTensor",
    "TensorHeader",
    "check_hash",
    "header_bytes",
    "read_header",
    "read_tensors",
    "write_file",
    "write_tensors",
]

LENGTH_BYTES = 8


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies inside the data part of a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class TensorHeader:
    """A checked header: tensors in file order, covering the data part without hole or overlap."""

    raw: bytes
    tensors: dict[str, StoredTensor]


def read_header(file: BinaryIO, file_size: int, where: str) -> TensorHeader:
    """The header of an open file of `file_size` bytes, or ArtifactError."""
    if file_size < LENGTH_BYTES:
        raise ArtifactError(
            f"{where}: {file_size} bytes is too short for a safetensors file; it was truncated."
        )
    prefix = file.read(LENGTH_BYTES)
    length = int.from_bytes(prefix, "little")
    if length > min(file_size - LENGTH_BYTES, MAX_HEADER_BYTES):
        raise ArtifactError(
            f"{where}: header length {length} does not fit a file of {file_size} bytes (at most"
            f" {MAX_HEADER_BYTES}); the file was truncated or is no safetensors file."
        )
    body = file.read(length)
    if len(prefix) != LENGTH_BYTES or len(body) != length:
        raise ArtifactError(f"{where}: ended while the header was read; the file was truncated.")
    content = parse_json(body, where, max_bytes=MAX_HEADER_BYTES)
    tensors = _check_entries(content, file_size - LENGTH_BYTES - length, where)
    return TensorHeader(prefix + body, tensors)


def _check_entries(content: Any, data_bytes: int, where: str) -> dict[str, StoredTensor]:
    if not isinstance(content, dict):
        raise ArtifactError(f"{where}: the header must be a JSON object.")
    metadata = content.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ArtifactError(f"{where}: __metadata__ must map text to text.")
    if len(content) > MAX_TENSORS_PER_FILE:
        raise ArtifactError(
            f"{where}: {len(content)} tensors, more than the {MAX_TENSORS_PER_FILE} allowed."
        )
    entries = [_check_entry(name, entry, where) for name, entry in content.items()]
    # Empty tensors may share an offset with their successor.
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    position = 0
    for entry in entries:
        if entry.begin != position:
            fault = "overlaps its predecessor" if entry.begin < position else "leaves a hole"
            raise ArtifactError(
                f"{where}: tensor {entry.name!a} {fault}: it begins at {entry.begin},"
                f" expected {position}."
            )
        position = entry.end
    if position != data_bytes:
        raise ArtifactError(
            f"{where}: the tensors take {position} bytes but the file holds {data_bytes}; it was"
            " truncated or has trailing bytes."
        )
    return {entry.name: entry for entry in entries}


def _check_entry(name: str, entry: Any, where: str) -> StoredTensor:
    check_name(name, where)
    place = f"{where}: tensor {name!a}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ArtifactError(f"{place}: expected exactly dtype, shape and data_offsets.")
    code = entry["dtype"]
    if not isinstance(code, str) or code not in DTYPES:
        raise ArtifactError(
            f"{place}: dtype {ascii(code)[:40]} is not known; known: {', '.join(DTYPES)}."
        )
    shape = _integers(entry["shape"], f"{place}: shape")
    offsets = _integers(entry["data_offsets"], f"{place}: data_offsets")
    dtype = DTYPES[code]
    num_bytes = checked_bytes(shape, dtype.itemsize, place)
    if len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1]:
        raise ArtifactError(f"{place}: data_offsets {offsets[:4]} must be [begin, end].")
    begin, end = offsets
    if end - begin != num_bytes:
        raise ArtifactError(
            f"{place}: shape {list(shape)} of {dtype_name(dtype)} takes {num_bytes} bytes, but"
            f" data_offsets give {end - begin}."
        )
    return StoredTensor(name, dtype, tuple(shape), begin, end)


def _integers(value: Any, where: str) -> list[int]:
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise ArtifactError(f"{where} must be a list of integers.")
    return value


ALIGNMENT = 8
CHUNK_BYTES = 1 << 20

Write = Callable[[bytes | memoryview], object]


def plan_order(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Names in file order: wide dtypes first so that every tensor stays aligned, then by name."""
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def header_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The length prefix and the padded JSON header of a file that holds `tensors`."""
    # "format: pt" is what transformers looks for before it accepts a file.
    content: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name in plan_order(tensors):
        tensor = tensors[name]
        end = position + tensor.nbytes
        content[name] = {
            "dtype": DTYPE_CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    body = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    body += b" " * (-len(body) % ALIGNMENT)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def write_tensors(write: Write, tensors: Mapping[str, torch.Tensor]) -> None:
    """Send a whole file to `write`, one chunk at a time: one tensor at most is copied."""
    write(header_bytes(tensors))
    for name in plan_order(tensors):
        flat = tensors[name].detach().to("cpu").contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().data
        for start in range(0, len(data), CHUNK_BYTES):
            write(data[start : start + CHUNK_BYTES])


def read_tensors(
    file: BinaryIO,
    header: TensorHeader,
    where: str,
    sha256: str | None = None,
    *,
    mapped: bool = False,
) -> dict[str, torch.Tensor]:
    """All tensors of a file whose header was just read.

    One pass: what is hashed is what is returned, so nobody can change the file in between. That
    does not hold for large tensors with `mapped`, which are hashed and stay in the file.

    Raises:
        ArtifactError: the file ended early, or `sha256` is given and does not match.
    """
    hasher = hashlib.sha256(header.raw)
    tensors = map_tensors(file, len(header.raw), header.tensors) if mapped else {}
    for entry in header.tensors.values():
        if entry.name in tensors:
            _hash_bytes(file, entry, where, hasher)
            continue
        flat = torch.empty(entry.end - entry.begin, dtype=torch.uint8, device="cpu")
        view = flat.numpy().data
        position = 0
        while position < len(view):
            # Chunks, so that a 32-bit read count of the operating system is never exceeded.
            part = view[position : position + (1 << 28)]
            count = file.readinto(part)  # type: ignore[attr-defined]
            if not count:
                raise ArtifactError(
                    f"{where}: tensor {entry.name!a}: the file ended after {position} of"
                    f" {len(view)} bytes."
                )
            position += count
        hasher.update(view)
        tensors[entry.name] = flat.view(entry.dtype).view(entry.shape)
    if file.read(1):
        raise ArtifactError(f"{where}: has bytes after its last tensor.")
    if sha256 is not None:
        check_hash(hasher.hexdigest(), sha256, where)
    return tensors


def _hash_bytes(file: BinaryIO, entry: StoredTensor, where: str, hasher: Any) -> None:
    """Read past one tensor."""
    left = entry.end - entry.begin
    while left:
        part = file.read(min(left, CHUNK_BYTES))
        if not part:
            raise ArtifactError(
                f"{where}: tensor {entry.name!a}: the file ended {left} bytes early."
            )
        hasher.update(part)
        left -= len(part)


def check_hash(found: str, expected: str, where: str) -> None:
    """Raise ArtifactError unless a file has the SHA-256 that its manifest says."""
    if found != expected:
        raise ArtifactError(
            f"{where}: was damaged or replaced after it was written: its SHA-256 begins with"
            f" {found[:8]}, the manifest says {expected[:8]}. Copy this file again from where the"
            " artifact came from, or make the artifact anew."
        )


def write_file(path: os.PathLike[str], content: bytes | Mapping[str, torch.Tensor]) -> FileEntry:
    """Write a new file of bytes or of tensors, on disk afterwards; gives its size and hash."""
    with open(path, "xb") as file:  # noqa: PTH123
        hashing = HashingFile(file)
        if isinstance(content, bytes):
            hashing.write(content)
        else:
            write_tensors(hashing.write, content)
        file.flush()
        os.fsync(file.fileno())
        return FileEntry(size=file.tell(), sha256=hashing.hasher.hexdigest())


@dataclass(frozen=True)
class HashingFile:
    """A file that hashes what is written."""

    file: BinaryIO
    hasher: Any = field(default_factory=hashlib.sha256)

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""
        self.file.write(data)
        self.hasher.update(data)
