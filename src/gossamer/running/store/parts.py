# SPDX-License-Identifier: Apache-2.0
"""One packed engine as a file: a head, arrays that are mapped, and a description behind them.

Layout: magic, place, length and SHA-256 of the description; from byte 4096 on arrays, each at a
multiple of 64; the description, JSON: where the arrays are, SHA-256 of every 8 MiB of them, and
what the owner of the file says. The head is written last.
"""

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from gossamer.errors import GossamerError
from gossamer.io.safe_files import MAX_MANIFEST_BYTES
from gossamer.io.safe_files.documents import parse_object

_MAGIC = b"gossamer packed engine\n\0"
_HEAD = struct.Struct("<24sQQ32s")
_FIRST = 4096
_ALIGNMENT = 64
_CHUNK = 8 << 20
Bytes = np.typing.NDArray[np.uint8]


class PartsFault(Exception):
    """Why a file is not used."""


@dataclass(frozen=True)
class Parts:
    """What an engine is made of.

    Attributes:
        told: plain data of its owner.
        arrays: bytes, each at a multiple of 64.
    """

    told: dict[str, Any]
    arrays: list[Bytes]


def write_parts(file: BinaryIO, parts: Parts) -> None:
    """Write an empty file that can be read, too."""
    places, at = [], _FIRST
    for array in parts.arrays:
        at += -at % _ALIGNMENT
        places.append([at, array.nbytes])
        file.seek(at)
        file.write(array.data)
        at += array.nbytes
    file.truncate(at)  # of no arrays at all, the head is left
    file.flush()
    # Read, not mapped: its pages would count as memory of this process.
    chunks = _digests(lambda begin, count: os.pread(file.fileno(), count, begin), at)
    content = json.dumps({"arrays": places, "chunks": chunks, "told": parts.told}).encode()
    file.seek(at)
    file.write(content)
    file.seek(0)
    file.write(_HEAD.pack(_MAGIC, at, len(content), hashlib.sha256(content).digest()))
    file.flush()


def read_parts(file: BinaryIO) -> Parts:
    """The parts in a file, mapped: pages are read when they are needed.

    Raises:
        PartsFault: it is damaged, or no such file.
    """
    size = os.fstat(file.fileno()).st_size
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise PartsFault("it ends early")
    magic, at, length, digest = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise PartsFault("it is no packed engine")
    if at < _FIRST or length > MAX_MANIFEST_BYTES or at + length != size:
        raise PartsFault("it ends early, or late")
    file.seek(at)
    content = file.read(length)
    if hashlib.sha256(content).digest() != digest:
        raise PartsFault("its description is damaged")
    try:
        described = parse_object(content, "packed engine")
    except GossamerError as error:
        raise PartsFault(str(error)) from error
    data = mmap.mmap(file.fileno(), at, access=mmap.ACCESS_READ)
    view = memoryview(data)
    if _digests(lambda begin, count: view[begin : begin + count], at) != described.get("chunks"):
        raise PartsFault("its arrays are damaged")
    whole = np.frombuffer(data, np.uint8)
    arrays = []
    for begin, count in described["arrays"]:
        if begin % _ALIGNMENT or not _FIRST <= begin <= begin + count <= at:
            raise PartsFault("an array lies outside of it")
        arrays.append(whole[begin : begin + count])
    return Parts(described["told"], arrays)


def _digests(read: Callable[[int, int], Any], end: int) -> list[str]:
    """SHA-256 of every chunk behind the head, on several threads."""

    def digest(begin: int) -> str:
        return hashlib.sha256(read(begin, min(_CHUNK, end - begin))).hexdigest()

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return list(threads.map(digest, range(_FIRST, end, _CHUNK)))
