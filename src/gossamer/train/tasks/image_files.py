# SPDX-License-Identifier: Apache-2.0
"""Images from .npz files (never pickled) and from folders of idx files, as MNIST has them.

Legend: N images, C channels, H height, W width.
"""

import gzip
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gossamer.errors import InputError

_NAMES = ("x_train", "y_train", "x_test", "y_test")
_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_IDX_UINT8 = 8
MAX_BYTES = 1 << 32


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
        arrays = {name: _read_idx(path, file) for name, file in zip(_NAMES, _IDX, strict=True)}
    elif path.suffix == ".npz" and path.is_file():
        arrays = _read_npz(path)
    elif not path.exists():
        raise InputError(f"{path}: there is no such file. {_EXPECTED}")
    else:
        raise InputError(f"{path}: is no image data. {_EXPECTED}")
    parts = []
    for kind in ("train", "test"):
        x, y = arrays[f"x_{kind}"], arrays[f"y_{kind}"]
        parts += [
            image_pixels(x, f"{path}: x_{kind}"),
            image_labels(y, len(x), f"{path}: y_{kind}"),
        ]
    images = Images(*parts)
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


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as held:
            missing = [name for name in _NAMES if name not in held.files]
            if missing:
                found = ", ".join(held.files[:6]) or "nothing"
                raise InputError(
                    f"{path}: {', '.join(missing)} missing, found {found}. {_EXPECTED}"
                )
            return {name: held[name] for name in _NAMES}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read ({str(error)[:120]}). {_EXPECTED}") from error


def _read_idx(folder: Path, name: str) -> np.ndarray:
    path = folder / name
    packed = folder / f"{name}.gz"
    try:
        if path.is_file():
            raw = path.read_bytes()
        else:
            with gzip.open(packed) as file:
                raw = file.read(MAX_BYTES + 1)
    except (OSError, EOFError) as error:
        raise InputError(f"{packed}: cannot be read ({error}). {_EXPECTED}") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != _IDX_UINT8:
        raise InputError(f"{path}: is no idx file of bytes (its first bytes are {raw[:4].hex()}).")
    dims = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    wanted, start = int(np.prod(shape, dtype=object)), 4 + 4 * dims
    if len(raw) - start != wanted or len(raw) > MAX_BYTES:
        raise InputError(
            f"{path}: its header says {shape}, {wanted} bytes, but {len(raw) - start} follow;"
            " it was truncated."
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def image_pixels(x: np.ndarray, where: str) -> torch.Tensor:
    """float32 [N, C, H, W]; whole numbers become parts of the largest of their type."""
    if x.ndim not in (3, 4) or not x.size or x.dtype.kind not in "uif":
        raise InputError(
            f"{where}: expected numbers [N, H, W] or [N, C, H, W], got {x.dtype} {list(x.shape)}."
        )
    pixels = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    if x.dtype.kind == "u":
        pixels = pixels / np.iinfo(x.dtype).max
    if not pixels.isfinite().all():
        bad = int((~pixels.isfinite()).sum())
        raise InputError(f"{where}: {bad} of {pixels.numel()} values are NaN or Inf.")
    return pixels[:, None] if pixels.ndim == 3 else pixels


def image_labels(y: np.ndarray, count: int, where: str) -> torch.Tensor:
    """int64 [N], one for each of `count` images."""
    if y.shape != (count,) or y.dtype.kind not in "ui" or (count and int(y.min()) < 0):
        raise InputError(
            f"{where}: expected whole numbers from 0, one for each of {count} images, got {y.dtype}"
            f" {list(y.shape)}."
        )
    return torch.from_numpy(y.astype(np.int64))
