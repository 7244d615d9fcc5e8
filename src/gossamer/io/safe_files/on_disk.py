# SPDX-License-Identifier: Apache-2.0
"""Tensors whose numbers are in a file, for those that no process could hold in memory.

The system reads a page where it is looked at and may drop it again, so that such a tensor takes
disk space and no memory. Tensors know it (`is_on_disk`): whoever copies state for safety need not
copy these.
"""

import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import torch

from gossamer.errors import ResourceError

__all__ = ["LARGE", "is_on_disk", "map_tensors", "tensor_on_disk"]

LARGE: Final = 2**20  # bytes: below, a tensor is not worth a file
_CAN_MAP: Final = hasattr(mmap, "MAP_PRIVATE")
_MARK: Final = "_gossamer_on_disk"


def is_on_disk(tensor: torch.Tensor) -> bool:
    """Whether the tensor is one that this module gave; views of it are not known."""
    return getattr(tensor, _MARK, False)


def tensor_on_disk(shape: torch.Size, dtype: torch.dtype, folder: Path) -> torch.Tensor:
    """A tensor in a file without a name, in `folder`; it goes when the tensor goes.

    Raises:
        ResourceError: the disk has no room for it.
    """
    num_bytes = shape.numel() * dtype.itemsize
    if not num_bytes:
        return torch.empty(shape, dtype=dtype)
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".rows-") as file:
            # Room is taken now: a page that cannot be written later would end the process.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            else:
                file.truncate(num_bytes)
            memory = mmap.mmap(file.fileno(), num_bytes)
    except OSError as error:
        raise ResourceError(
            f"{folder}: {num_bytes:,} bytes of table rows, gathered from all ranks, do not fit the"
            f" disk ({error.strerror}). Free some space or choose another folder."
        ) from error
    return _marked(torch.frombuffer(memory, dtype=dtype).view(shape))


class _Stored(Protocol):
    """Where one tensor lies inside the data part of a file."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...


def map_tensors(
    file: BinaryIO, start: int, places: Mapping[str, _Stored]
) -> dict[str, torch.Tensor]:
    """The large tensors of a file, left in it: pages are read where they are looked at.

    Nothing is hashed; what is written to such a tensor stays in this process. None of them where
    the system cannot do that.

    Args:
        file: open.
        start: of its data part.
        places: of the tensors in that part, checked.
    """
    large = {
        name: place
        for name, place in places.items()
        if place.end - place.begin >= LARGE and (start + place.begin) % place.dtype.itemsize == 0
    }
    if not large or not _CAN_MAP:
        return {}
    # Without a reserve: the file may be larger than memory, and is only looked at.
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
    size = start + max(place.end for place in large.values())
    memory = mmap.mmap(file.fileno(), size, flags=flags)
    return {
        name: _marked(
            torch.frombuffer(
                memory,
                dtype=place.dtype,
                count=torch.Size(place.shape).numel(),
                offset=start + place.begin,
            ).view(place.shape)
        )
        for name, place in large.items()
    }


def _marked(tensor: torch.Tensor) -> torch.Tensor:
    made: Any = tensor
    setattr(made, _MARK, True)
    return tensor
