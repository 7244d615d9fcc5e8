# SPDX-License-Identifier: Apache-2.0
"""Tensors of an ONNX file, dense and sparse, inside it or in a file beside it.

Sizes are compared with the bytes that are there before anything is made of them; a file beside it
must lie in the model's own folder.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gossamer.errors import ArtifactError
from gossamer.io.safe_files.checks import check_memory, checked_bytes
from gossamer.named_files import open_inside, size_of
from gossamer.nn.operator_graph.operators import DTYPES

_EXTERNAL = 1  # TensorProto.DataLocation
# Where protobuf keeps numbers that are not raw bytes; all others are int32, floats of 16 bits too.
_FIELDS = {torch.float32: "float_data", torch.float64: "double_data", torch.int64: "int64_data"}
_HALVES = (torch.float16, torch.bfloat16)


@dataclass
class TensorReader:
    """Reads the tensors of one model; `spent` is the memory they took so far."""

    path: Path
    max_bytes: int | None
    stored: int
    spent: int = 0

    def dense(self, proto: Any, name: str) -> torch.Tensor:
        """The values of a TensorProto."""
        where = f"{self.path}: tensor {name[:200]!a}"
        dtype = dtype_of(proto.data_type, where)
        dims = list(proto.dims)
        num_bytes = self._spend(dims, dtype, where)
        if proto.data_location == _EXTERNAL:
            raw = self._external(proto, num_bytes, where)
        elif proto.HasField("raw_data"):
            raw = proto.raw_data
        else:
            return _from_numbers(proto, dims, dtype, where)
        if len(raw) != num_bytes:
            raise ArtifactError(
                f"{where}: shape {dims} of {dtype} needs {num_bytes} bytes, found {len(raw)}."
            )
        if not num_bytes:
            return torch.empty(dims, dtype=dtype)
        return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(dims)

    def sparse(self, proto: Any, name: str) -> torch.Tensor:
        """The values of a SparseTensorProto with exact zeros in between."""
        where = f"{self.path}: sparse tensor {name[:200]!a}"
        values = self.dense(proto.values, name)
        places = self.dense(proto.indices, f"{name} (indices)")
        dims = list(proto.dims)
        self._spend(dims, values.dtype, where)
        total, count = math.prod(dims), values.numel()
        if values.ndim != 1 or places.dtype is not torch.int64:
            raise ArtifactError(f"{where}: expected values of one dimension and int64 indices.")
        if tuple(places.shape) == (count, len(dims)):
            if bool(((places < 0) | (places >= torch.tensor(dims))).any()):
                raise ArtifactError(f"{where}: an index lies outside of the shape {dims}.")
            strides = torch.tensor([math.prod(dims[i + 1 :]) for i in range(len(dims))])
            places = (places * strides).sum(dim=1)
        elif tuple(places.shape) != (count,):
            raise ArtifactError(
                f"{where}: {count} values, but indices of shape {list(places.shape)}; expected"
                f" [{count}] or [{count}, {len(dims)}]."
            )
        if count and not (int(places.min()) >= 0 and int(places.max()) < total):
            raise ArtifactError(f"{where}: an index lies outside of the shape {dims}.")
        if count > 1 and not bool((places[1:] > places[:-1]).all()):
            raise ArtifactError(f"{where}: its indices are not ascending.")
        dense = torch.zeros(total, dtype=values.dtype)
        dense[places] = values
        return dense.reshape(dims)

    def _spend(self, dims: Sequence[int], dtype: torch.dtype, where: str) -> int:
        num_bytes = checked_bytes(dims, dtype.itemsize, where)
        self.spent += num_bytes
        # Weights are transposed and dequantised on the way: twice their size for a while.
        check_memory(2 * self.spent, self.stored, self.max_bytes, str(self.path))
        return num_bytes

    def _external(self, proto: Any, num_bytes: int, where: str) -> bytes:
        entries = {entry.key: entry.value for entry in proto.external_data}
        folder, location = self.path.parent, entries.get("location", "")
        offset, length = (_number(entries, key, where) for key in ("offset", "length"))
        try:
            file = open_inside(folder, location)
        except ArtifactError as error:
            raise ArtifactError(
                f"{where}: its data is not in the folder of the model. {error}"
            ) from error
        with file:
            size = size_of(file)
            length = size - offset if "length" not in entries else length
            if length != num_bytes or offset + length > size:
                raise ArtifactError(
                    f"{where}: expected {num_bytes} bytes at {offset} of {location[:200]!a}, which"
                    f" has {size}; the file announces {length}."
                )
            file.seek(offset)
            return file.read(num_bytes)


def dtype_of(code: int, where: str) -> torch.dtype:
    """The torch type of a TensorProto.DataType."""
    if code not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES.values())
        raise ArtifactError(f"{where}: data type {code} cannot be read; known: {known}.")
    return DTYPES[code]


def _from_numbers(proto: Any, dims: list[int], dtype: torch.dtype, where: str) -> torch.Tensor:
    name = _FIELDS.get(dtype, "int32_data")
    numbers, expected = getattr(proto, name), math.prod(dims)
    if len(numbers) != expected:
        raise ArtifactError(
            f"{where}: shape {dims} needs {expected} numbers, found {len(numbers)}."
        )
    wide = np.array(numbers, np.float64 if name in ("float_data", "double_data") else np.int64)
    tensor = torch.from_numpy(wide).reshape(dims)
    return tensor.to(torch.uint16).view(dtype) if dtype in _HALVES else tensor.to(dtype)


def _number(entries: dict[str, str], key: str, where: str) -> int:
    text = entries.get(key, "0")
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise ArtifactError(f"{where}: the {key} of its data is {text[:40]!a}, expected a number.")
    return int(text)
