# SPDX-License-Identifier: Apache-2.0
"""Tensors to and from safetensors files, hashed in the same pass and flushed to disk.

Our own writer: the library's neither flushes to disk nor says what it wrote. Files are ordinary
safetensors that every reader of the format accepts.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import BinaryIO

import torch

from gossamer.errors import ArtifactError
from gossamer.io.safe_files.tensors.tensor_header import DTYPE_CODES, LENGTH_BYTES, TensorHeader

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
    file: BinaryIO, header: TensorHeader, where: str, sha256: str | None = None
) -> dict[str, torch.Tensor]:
    """All tensors of a file whose header was just read.

    One pass: what is hashed is what is returned, so nobody can change the file in between.

    Raises:
        ArtifactError: the file ended early, or `sha256` is given and does not match.
    """
    hasher = hashlib.sha256(header.raw)
    tensors: dict[str, torch.Tensor] = {}
    for entry in header.tensors.values():
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


def check_hash(found: str, expected: str, where: str) -> None:
    """Raise ArtifactError unless a file has the SHA-256 that its manifest says."""
    if found != expected:
        raise ArtifactError(
            f"{where}: was damaged or replaced after it was written: its SHA-256 begins with"
            f" {found[:8]}, the manifest says {expected[:8]}. Copy this file again from where the"
            " artifact came from, or make the artifact anew."
        )


def write_file(
    path: os.PathLike[str], content: bytes | Mapping[str, torch.Tensor]
) -> "HashingFile":
    """Write a new file of bytes or of tensors; gives its size and hash."""
    with HashingFile(path) as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            write_tensors(file.write, content)
    return file


class HashingFile:
    """A new file that counts and hashes what is written and is on disk when it is closed."""

    def __init__(self, path: os.PathLike[str]) -> None:
        self._file = open(path, "xb")  # noqa: SIM115, PTH123 - closed by __exit__
        self._hasher = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""
        self._file.write(data)
        self._hasher.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        """Hex digest of everything written so far."""
        return self._hasher.hexdigest()

    def __enter__(self) -> "HashingFile":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()
