# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file, checked before a byte of tensor data is read.

Layout: 8 bytes little-endian header length, that many bytes of JSON, then the tensors without
gaps. https://github.com/huggingface/safetensors#format
"""

from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

from gossamer.errors import ArtifactError
from gossamer.io.safe_files.documents import parse_json
from gossamer.io.safe_files.limits import (
    MAX_HEADER_BYTES,
    MAX_TENSORS_PER_FILE,
    check_name,
    checked_bytes,
)

LENGTH_BYTES = 8

# safetensors code, torch dtype. A dtype that is not here can be neither written nor read.
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
DTYPE_CODES = {dtype: code for code, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


# Names as the manifest spells them: "float32", not "torch.float32".
DTYPE_NAMES = {dtype_name(dtype): dtype for dtype in DTYPES.values()}


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
