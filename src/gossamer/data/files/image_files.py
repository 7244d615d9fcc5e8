# SPDX-License-Identifier: Apache-2.0
"""Images from .npz files (never pickled) and from folders of idx files, as MNIST has them.

Legend: N images, C channels, H height, W width.
"""

import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gossamer.errors import InputError
from gossamer.io.safe_files.arrays import FREE_BYTES, MAX_GROWTH, ArrayHeader, open_arrays
from gossamer.named_files import is_inside, open_inside, size_of

_TRAIN, _TEST = ("x_train", "y_train"), ("x_test", "y_test")
_PAIRS = (("x", "y"), _TRAIN)
_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_IDX_UINT8, _IDX_MAX_DIMS = 8, 4
_EXPECTED = "Give a .npz file with x [N, H, W] or [N, C, H, W] and y [N], or x_train and y_train."
_EXPECTED_SPLIT = (
    "Give a .npz file with x_train [N, H, W] or [N, C, H, W], y_train [N], x_test and y_test, or a"
    " folder with the four idx files of MNIST."
)


@dataclass(frozen=True)
class ImageSet:
    """Images with labels: float32 [N, C, H, W] and int64 [N].

    `test` holds the other part of a file that has two, to measure on.
    """

    name: str
    pixels: torch.Tensor
    labels: torch.Tensor
    test: "ImageSet | None" = None

    def part(self, numbers: Sequence[int]) -> "ImageSet":
        """Some of them."""
        chosen = list(numbers)
        return ImageSet(self.name, self.pixels[chosen], self.labels[chosen])


def read_images(path: Path, *, split: bool = False) -> ImageSet:
    """Read a .npz file of images with labels, or a folder of idx files.

    A .npz file has x and y, or x_train and y_train, and maybe x_test and y_test. With `split`,
    both parts must be there, as an idx folder has them, and their images must be of one size.
    """
    if split and path.is_dir():
        try:
            arrays, pairs = [read_idx(path, name) for name in _IDX], [_TRAIN, _TEST]
        except InputError as error:
            raise InputError(f"{error} {_EXPECTED_SPLIT}") from error
    else:
        arrays, pairs = _read_npz(path, split=split)
    held = zip(arrays[::2], arrays[1::2], pairs, strict=True)
    parts = [_labelled_images(x, y, *(f"{path}: {name}" for name in pair)) for x, y, pair in held]
    sizes = [list(pixels.shape[1:]) for pixels, _ in parts]
    if split and sizes[0] != sizes[1]:
        raise InputError(
            f"{path}: images for training are {sizes[0]}, for testing {sizes[1]}; expected one"
            " size."
        )
    first, *rest = (ImageSet(path.name, *part) for part in parts)
    return replace(first, test=rest[0]) if rest else first


def _read_npz(path: Path, *, split: bool) -> tuple[list[np.ndarray], list[tuple[str, str]]]:
    """Pixels and labels of one or two parts, and their names.

    Types and shapes are checked before anything is expanded.
    """
    expected = _EXPECTED_SPLIT if split else _EXPECTED
    if split and not (path.suffix == ".npz" and path.is_file()):
        what = "is no image data" if path.exists() else "there is no such file"
        raise InputError(f"{path}: {what}. {expected}")
    with open_arrays(path, expected) as held:
        names = next((pair for pair in _PAIRS if set(pair) <= set(held.names)), None)
        missing = ", ".join(name for name in (*_TRAIN, *_TEST) if name not in held.names)
        if names is None or (split and missing):
            found = ascii(", ".join(held.names[:6]) or "nothing")[1:-1][:200]
            lacks = f"{missing} missing, " if split else ""
            raise InputError(f"{path}: {lacks}found {found}. {expected}")
        pairs = [_TRAIN if split else names]
        pairs += [_TEST] if set(_TEST) <= set(held.names) else []
        headers = [held.header(name) for pair in pairs for name in pair]
        for x, y in zip(headers[::2], headers[1::2], strict=True):
            _check_pixels(x, f"{path}: {x.name}")
            _check_labels(y, x.shape[0], f"{path}: {y.name}")
        return held.read(*headers), pairs


def read_idx(folder: Path, name: str) -> np.ndarray:
    """Bytes of the file `name` in a folder, or of `name`.gz, in the shape its header says."""
    packed = not is_inside(folder, name)
    found = f"{name}.gz" if packed else name
    where = f"{folder / found}"
    with open_inside(folder, found, InputError) as file:
        stream: Any = gzip.GzipFile(fileobj=file) if packed else file
        try:
            start = stream.read(4)
            is_idx = len(start) == 4 and start[:3] == bytes([0, 0, _IDX_UINT8])
            if not is_idx or start[3] > _IDX_MAX_DIMS:
                raise InputError(
                    f"{where}: is no idx file of bytes (its first bytes are {start.hex()})."
                )
            sizes = stream.read(4 * start[3])
            if len(sizes) != 4 * start[3]:
                raise InputError(f"{where}: ends in its header; it was truncated.")
            shape = np.frombuffer(sizes, ">u4").tolist()
            wanted = math.prod(shape)
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


def _labelled_images(
    x: np.ndarray, y: np.ndarray, where_x: str, where_y: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers become parts of the largest of their type; every image has a label."""
    _check_pixels(x, where_x)
    pixels = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    if x.dtype.kind == "u":
        pixels = pixels / np.iinfo(x.dtype).max
    bad = pixels.numel() - int(pixels.isfinite().sum())
    if bad:
        raise InputError(f"{where_x}: {bad} of {pixels.numel()} values are NaN or Inf.")
    _check_labels(y, len(x), where_y)
    labels = y.astype(np.int64)
    if len(x) and int(labels.min()) < 0:
        raise InputError(
            f"{where_y}: expected whole numbers from 0, one for each of {len(x)} images, got"
            f" {labels.min()}."
        )
    return pixels[:, None] if pixels.ndim == 3 else pixels, torch.from_numpy(labels)


def _check_pixels(x: np.ndarray | ArrayHeader, where: str) -> None:
    if x.ndim not in (3, 4) or not x.size or x.dtype.kind not in "uif":
        raise InputError(
            f"{where}: expected numbers [N, H, W] or [N, C, H, W], got {x.dtype} {list(x.shape)}."
        )


def _check_labels(y: np.ndarray | ArrayHeader, count: int, where: str) -> None:
    if y.shape != (count,) or y.dtype.kind not in "ui":
        raise InputError(
            f"{where}: expected whole numbers from 0, one for each of {count} images, got {y.dtype}"
            f" {list(y.shape)}."
        )
