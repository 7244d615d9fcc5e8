# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST: all of it where Debian's dataset-fashion-mnist is installed, else the subset."""

import gzip
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gossamer import settings

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_MAGIC_IMAGES, _MAGIC_LABELS = 2051, 2049


@dataclass(frozen=True)
class Images:
    """Pixels [B, 1, 28, 28] without the mean image, variance 1, and their classes."""

    source: str
    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor


def load(folder=None, limit=None, held_out=False):
    """The images of `folder`, of the Debian package, or the subset under GOSSAMER_DATA.

    Args:
        folder: with the four idx files.
        limit: so many training images only.
        held_out: the last sixth of the training images takes the place of the test images: settings
            are chosen there.
    """
    place = Path(folder) if folder else DEBIAN
    if (place / "train-images-idx3-ubyte.gz").exists():
        arrays = _idx(place)
        source = "all of it"
    else:
        data = settings.data_dir()
        file = None if data is None else data / "fashion-mnist-subset" / "fashion_3k_1k.npz"
        if file is None or not file.exists():
            sys.exit(
                "schedules: no Fashion-MNIST. Install Debian's dataset-fashion-mnist, or set"
                " GOSSAMER_DATA to the folder that holds fashion-mnist-subset."
            )
        with np.load(file) as held:
            arrays = [held[name] for name in ("x_train", "y_train", "x_test", "y_test")]
        source = "subset"
    if held_out:
        cut = len(arrays[0]) - len(arrays[0]) // 6
        arrays = [*(a[:cut] for a in arrays[:2]), *(a[cut:] for a in arrays[:2])]
    x_train, y_train, x_test, y_test = arrays
    source += f", {len(x_train[:limit])} images to train, {len(x_test)} to test"
    source += " (held out of the training images)" if held_out else ""
    pixels, test = (
        torch.from_numpy(x.astype(np.float32)).view(-1, 1, 28, 28) / 255.0
        for x in (x_train[:limit], x_test)
    )
    mean = pixels.mean(0, keepdim=True)
    scale = (pixels - mean).std()
    return Images(
        source,
        (pixels - mean) / scale,
        torch.from_numpy(y_train[:limit].astype(np.int64)).flatten(),
        (test - mean) / scale,
        torch.from_numpy(y_test.astype(np.int64)).flatten(),
    )


def _idx(place):
    return [
        _read(place / f"{part}-{kind}-ubyte.gz", magic)
        for part in ("train", "t10k")
        for kind, magic in (("images-idx3", _MAGIC_IMAGES), ("labels-idx1", _MAGIC_LABELS))
    ]


def _read(file, magic):
    raw = gzip.decompress(file.read_bytes())
    found, count = (int.from_bytes(raw[at : at + 4], "big") for at in (0, 4))
    header = 16 if magic == _MAGIC_IMAGES else 8
    if found != magic or (len(raw) - header) % max(count, 1):
        sys.exit(f"schedules: {file} is not an idx file.")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(count, -1)
