# SPDX-License-Identifier: Apache-2.0
"""Images from .npz files (never pickled) and from folders of idx files, as MNIST has them.

Legend: N images, C channels, H height, W width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gossamer.data.tasks.idx_file import read_idx
from gossamer.errors import InputError
from gossamer.io.safe_files.arrays.array_file import ArrayFile, ArrayHeader, open_arrays

_NAMES = ("x_train", "y_train", "x_test", "y_test")
_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Images:
    """float32 [N, C, H, W] and int64 labels [N], for training and for testing."""

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor

    @property
    def num_classes(self) -> int:
        """One more than the largest label."""
        return int(max(self.y_train.max(), self.y_test.max())) + 1


def read_images(path: Path) -> Images:
    """The images of a .npz file with x_train, y_train, x_test and y_test, or of an idx folder."""
    if path.is_dir():
        parts = _read_idx_folder(path)
    elif path.suffix == ".npz" and path.is_file():
        parts = _read_npz(path)
    elif not path.exists():
        raise InputError(f"{path}: there is no such file. {_EXPECTED}")
    else:
        raise InputError(f"{path}: is no image data. {_EXPECTED}")
    images = Images(*parts[0], *parts[1])
    if images.x_train.shape[1:] != images.x_test.shape[1:]:
        raise InputError(
            f"{path}: images for training are {list(images.x_train.shape[1:])}, for testing"
            f" {list(images.x_test.shape[1:])}; expected one size."
        )
    return images


_EXPECTED = (
    "Give a .npz file with x_train [N, H, W] or [N, C, H, W], y_train [N], x_test and y_test, or a"
    " folder with the four idx files of MNIST."
)


def _read_npz(path: Path) -> list[Pair]:
    with open_arrays(path, _EXPECTED) as held:
        missing = ", ".join(name for name in _NAMES if name not in held.names)
        if missing:
            found = ascii(", ".join(held.names[:6]) or "nothing")[1:-1][:200]
            raise InputError(f"{path}: {missing} missing, found {found}. {_EXPECTED}")
        return read_pairs(held, [("x_train", "y_train"), ("x_test", "y_test")], str(path))


def read_pairs(held: ArrayFile, names: Sequence[tuple[str, str]], where: str) -> list[Pair]:
    """Images and labels; types and shapes are looked at before anything is expanded."""
    headers = [held.header(name) for pair in names for name in pair]
    for x, y in zip(headers[::2], headers[1::2], strict=True):
        _check_pixels(x, f"{where}: {x.name}")
        _check_labels(y, x.shape[0], f"{where}: {y.name}")
    arrays = held.read(*headers)
    return [
        (
            image_pixels(arrays[2 * i], f"{where}: {x}"),
            image_labels(arrays[2 * i + 1], len(arrays[2 * i]), f"{where}: {y}"),
        )
        for i, (x, y) in enumerate(names)
    ]


def _read_idx_folder(folder: Path) -> list[Pair]:
    try:
        arrays = [read_idx(folder, name) for name in _IDX]
    except InputError as error:
        raise InputError(f"{error} {_EXPECTED}") from error
    return [
        (
            image_pixels(arrays[i], f"{folder}: {_NAMES[i]}"),
            image_labels(arrays[i + 1], len(arrays[i]), f"{folder}: {_NAMES[i + 1]}"),
        )
        for i in (0, 2)
    ]


def image_pixels(x: np.ndarray, where: str) -> torch.Tensor:
    """float32 [N, C, H, W]; whole numbers become parts of the largest of their type."""
    _check_pixels(x, where)
    pixels = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    if x.dtype.kind == "u":
        pixels = pixels / np.iinfo(x.dtype).max
    if not pixels.isfinite().all():
        bad = int((~pixels.isfinite()).sum())
        raise InputError(f"{where}: {bad} of {pixels.numel()} values are NaN or Inf.")
    return pixels[:, None] if pixels.ndim == 3 else pixels


def image_labels(y: np.ndarray, count: int, where: str) -> torch.Tensor:
    """int64 [N], one for each of `count` images."""
    _check_labels(y, count, where)
    labels = y.astype(np.int64)
    if count and int(labels.min()) < 0:
        raise InputError(
            f"{where}: expected whole numbers from 0, one for each of {count} images, got"
            f" {labels.min()}."
        )
    return torch.from_numpy(labels)


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
