# SPDX-License-Identifier: Apache-2.0
"""The header of a gguf file, checked before a byte of tensor data is read.

Layout, little-endian: magic, version, number of tensors, number of settings; the settings, typed;
name, dimensions, type and offset of every tensor; padding; the data. Every count and length is
compared with the bytes that are left in the file before anything is made of it.
"""

import os
import struct
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from gossamer.errors import ArtifactError
from gossamer.io.safe_files import MAX_HEADER_BYTES, MAX_TENSORS_PER_FILE
from gossamer.io.safe_files.checks import check_name, checked_bytes
from gossamer.named_files import open_named, size_of

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_GGUF_DIMS = 4
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 2**16
# One byte in an array becomes a Python object; vocabularies have some 10^5 entries.
MAX_ITEMS = 2**22
_START_BYTES = 24
# The least a setting (key length, type, one byte) and a tensor (all fields, empty name) can take.
_MIN_SETTING_BYTES = 13
_MIN_TENSOR_BYTES = 24
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip


@dataclass(frozen=True)
class TensorType:
    """How a tensor is stored: `block_bytes` for every `block` values of a row."""

    code: int
    block: int
    block_bytes: int


# What can be turned into fp32; a type that is not here is refused.
TENSOR_TYPES = {
    name: TensorType(*numbers)
    for name, *numbers in (
        ("F32", 0, 1, 4),
        ("F16", 1, 1, 2),
        ("BF16", 30, 1, 2),
        ("Q4_0", 2, 32, 18),
        ("Q4_1", 3, 32, 20),
        ("Q5_0", 6, 32, 22),
        ("Q5_1", 7, 32, 24),
        ("Q8_0", 8, 32, 34),
        ("Q2_K", 10, 256, 84),
        ("Q3_K", 11, 256, 110),
        ("Q4_K", 12, 256, 144),
        ("Q5_K", 13, 256, 176),
        ("Q6_K", 14, 256, 210),
        ("IQ4_NL", 20, 32, 18),
        ("IQ4_XS", 23, 256, 136),
        ("IQ2_XXS", 16, 256, 66),
        ("IQ2_XS", 17, 256, 74),
        ("IQ2_S", 22, 256, 82),
        ("IQ3_XXS", 18, 256, 98),
        ("IQ3_S", 21, 256, 110),
        ("IQ1_S", 19, 256, 50),
        ("IQ1_M", 29, 256, 56),
        ("TQ1_0", 34, 256, 54),
        ("TQ2_0", 35, 256, 66),
        ("MXFP4", 39, 32, 17),
        ("NVFP4", 40, 64, 36),
    )
}
_BY_CODE = {kind.code: kind for kind in TENSOR_TYPES.values()}


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies in the file; `shape` has the slowest dimension first, as in torch."""

    name: str
    shape: tuple[int, ...]
    kind: TensorType
    begin: int
    end: int


@dataclass(frozen=True)
class GgufHeader:
    """Settings by key and tensors by name, all inside the file and apart from each other."""

    settings: dict[str, Any]
    tensors: dict[str, GgufTensor]


def open_gguf(path: os.PathLike[str] | str) -> tuple[BinaryIO, GgufHeader]:
    """The open file and its checked header; the caller closes the file."""
    file = open_named(path)
    try:
        return file, read_gguf_header(file, size_of(file), str(path))
    except BaseException:
        file.close()
        raise


def read_gguf_header(file: BinaryIO, file_size: int, where: str) -> GgufHeader:
    """The header of an open file of `file_size` bytes, or ArtifactError."""
    cursor = _Cursor(file, file_size, where)
    if file_size < _START_BYTES or cursor.take(4) != MAGIC:
        raise ArtifactError(f"{where}: is no gguf file; it does not begin with {MAGIC!r}.")
    version = cursor.number("I")
    if version not in VERSIONS:
        raise ArtifactError(f"{where}: gguf version {version} is not known; known: {VERSIONS}.")
    num_tensors, num_settings = cursor.number("Q"), cursor.number("Q")
    cursor.expect(num_settings, _MIN_SETTING_BYTES, "settings")
    cursor.expect(num_tensors, _MIN_TENSOR_BYTES, "tensors")
    if num_tensors > MAX_TENSORS_PER_FILE:
        raise ArtifactError(
            f"{where}: {num_tensors} tensors, more than the {MAX_TENSORS_PER_FILE} allowed."
        )
    settings: dict[str, Any] = {}
    for _ in range(num_settings):
        key = check_name(cursor.text(), where)
        if key in settings:
            raise ArtifactError(f"{where}: the setting {key!a} appears twice.")
        settings[key] = cursor.value(key)
    tensors = [_read_tensor(cursor) for _ in range(num_tensors)]
    unit = settings.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(unit) is not int or not 8 <= unit <= MAX_ALIGNMENT or unit & (unit - 1):
        raise ArtifactError(
            f"{where}: general.alignment must be a power of two in [8, {MAX_ALIGNMENT}], got"
            f" {ascii(unit)[:40]}."
        )
    begin = cursor.position + -cursor.position % unit
    return GgufHeader(settings, _place(tensors, begin, file_size, where))


@dataclass
class _Cursor:
    """Reads forward and never past the end of the file or the limit of a header."""

    file: BinaryIO
    size: int
    where: str
    position: int = 0
    num_items: int = 0

    def expect(self, count: int, each: int, what: str) -> None:
        left = self.size - self.position
        if count * each > left:
            raise ArtifactError(
                f"{self.where}: announces {count} {what} at byte {self.position}, but only {left}"
                " bytes are left; the file was truncated or is damaged."
            )

    def take(self, count: int) -> bytes:
        self.expect(count, 1, "bytes")
        if self.position + count > MAX_HEADER_BYTES:
            raise ArtifactError(f"{self.where}: its header has more than {MAX_HEADER_BYTES} bytes.")
        raw = self.file.read(count)
        if len(raw) != count:
            raise ArtifactError(f"{self.where}: ended while its header was read.")
        self.position += count
        return raw

    def number(self, code: str) -> Any:
        return self._unpack(f"<{code}")[0]

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def text(self) -> str:
        raw = self.take(self.number("Q"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            place = self.position - len(raw) + error.start
            raise ArtifactError(f"{self.where}: not UTF-8 at byte {place}.") from error

    def _texts(self, count: int) -> list[str]:
        """So many texts; `text` for those that are as they should be, in a quarter of its time."""
        read, unpack, found = self.file.read, struct.Struct("<Q").unpack, []
        end = min(self.size, MAX_HEADER_BYTES)
        for _ in range(count):
            head = read(8)
            length = unpack(head)[0] if len(head) == 8 else end
            raw = read(length) if length <= end - self.position - 8 else b""
            try:
                found.append(raw.decode("utf-8"))
            except UnicodeDecodeError:
                length = -1
            if len(raw) != length:
                self.file.seek(self.position)
                self.text()  # says what is wrong
            self.position += 8 + length
        return found

    def value(self, key: str) -> Any:
        kind = self.number("I")
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(self._code(kind, key))
        kind, count = self.number("I"), self.number("Q")
        self.num_items += count
        if self.num_items > MAX_ITEMS:
            raise ArtifactError(
                f"{self.where}: {key!a} brings its arrays to {self.num_items} entries, more than"
                f" the {MAX_ITEMS} allowed."
            )
        if kind == _STRING:
            self.expect(count, 8, "texts")
            return self._texts(count)
        code = self._code(kind, key)
        self.expect(count, struct.calcsize(f"<{code}"), "numbers")
        return list(self._unpack(f"<{count}{code}"))

    def _code(self, kind: int, key: str) -> str:
        if kind not in _NUMBERS:
            raise ArtifactError(f"{self.where}: the setting {key!a} has the unknown type {kind}.")
        return _NUMBERS[kind]


def _read_tensor(cursor: _Cursor) -> GgufTensor:
    """The next tensor; it begins and ends where it does in the data part."""
    name = check_name(cursor.text(), cursor.where)
    place = f"{cursor.where}: tensor {name!a}"
    num_dims = cursor.number("I")
    if not 1 <= num_dims <= MAX_GGUF_DIMS:
        raise ArtifactError(f"{place}: must have 1 to {MAX_GGUF_DIMS} dimensions, got {num_dims}.")
    shape = tuple(cursor.number("Q") for _ in range(num_dims))[::-1]
    code, offset = cursor.number("I"), cursor.number("Q")
    if code not in _BY_CODE:
        raise ArtifactError(
            f"{place}: tensor type {code} cannot be read; known: {', '.join(TENSOR_TYPES)}."
            " Convert the file to one of them, for example Q8_0 or F16."
        )
    kind = _BY_CODE[code]
    num_values = checked_bytes(shape, 4, place) // 4
    if shape[-1] % kind.block:
        raise ArtifactError(
            f"{place}: rows of {shape[-1]} values cannot be stored in blocks of {kind.block}."
        )
    end = offset + num_values // kind.block * kind.block_bytes
    return GgufTensor(name, shape, kind, offset, end)


def _place(
    tensors: list[GgufTensor], begin: int, file_size: int, where: str
) -> dict[str, GgufTensor]:
    """Tensors by name, at their places in a file whose data part begins at a byte."""
    placed: dict[str, GgufTensor] = {}
    last = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.begin):
        place = f"{where}: tensor {tensor.name!a}"
        if tensor.name in placed:
            raise ArtifactError(f"{place}: appears twice.")
        if tensor.begin < last:
            raise ArtifactError(f"{place}: overlaps its predecessor.")
        last = tensor.end
        if begin + last > file_size:
            raise ArtifactError(
                f"{place}: ends at byte {begin + last}, but the file has {file_size}; it was"
                " truncated."
            )
        placed[tensor.name] = replace(tensor, begin=begin + tensor.begin, end=begin + last)
    return placed
