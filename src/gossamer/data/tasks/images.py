# SPDX-License-Identifier: Apache-2.0
"""Classification of images. Legend: B batch, C channels, H height, W width."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gossamer.data.batches import ShuffledBatches, generator_of
from gossamer.data.files import ImageSet, read_images
from gossamer.data.tasks.task import Task, classifier_quality, tensors_digest

GENERATED = "zoo:images"
_EVAL_BATCH = 500


def image_task(data: str, batch: int, seed: int, *, flat: bool = False) -> Task:
    """Images of a file or folder, or generated ones: `zoo:images`.

    Args:
        data: a path that `read_images` takes, or "zoo:images".
        batch: images in a batch.
        seed: of the order of images.
        flat: images are given to the model as [B, C * H * W], as an MLP takes them.
    """
    images = generated_images() if data == GENERATED else read_images(Path(data), split=True)
    # Both parts are there: `split` asks for them, and generated images have them.
    test: Any = images.test
    mean, std = images.pixels.mean(), images.pixels.std().clamp(min=1e-6)
    channels, height, width = images.pixels.shape[1:]
    x_train, x_test = ((part.pixels - mean) / std for part in (images, test))
    if flat:
        x_train, x_test = x_train.flatten(1), x_test.flatten(1)

    def take(index: torch.Tensor) -> Any:
        return x_train[index], images.labels[index]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y_B = batch
        return cross_entropy(model(x).float(), y_B)

    def evaluate(model: nn.Module) -> dict[str, float]:
        parts = zip(x_test.split(_EVAL_BATCH), test.labels.split(_EVAL_BATCH), strict=True)
        return classifier_quality(model, (((x,), y_B) for x, y_B in parts))

    return Task(
        name="images",
        batches=ShuffledBatches(len(x_train), batch, seed, take),
        loss=loss,
        evaluate=evaluate,
        tokens=batch,
        sizes={
            "inputs": channels * height * width,
            "channels": channels,
            "height": height,
            "width": width,
            "classes": int(max(images.labels.max(), test.labels.max())) + 1,
        },
        example=x_train[:batch],
        digest=tensors_digest(images.pixels, images.labels, test.pixels, test.labels),
    )


def generated_images() -> ImageSet:
    """Noisy, shifted drawings of random smooth patterns: learned in seconds, not trivial."""
    num_classes, side = 6, 12
    generator = generator_of(0, num_classes, side)
    coarse = torch.randn(num_classes, 1, 4, 4, generator=generator)
    drawings = nn.functional.interpolate(coarse, size=(side + 4, side + 4), mode="bilinear")

    def draw(count: int) -> ImageSet:
        labels = torch.randint(num_classes, (count,), generator=generator)
        shifts = torch.randint(5, (count, 2), generator=generator).tolist()
        noise = 0.8 * torch.randn(count, 1, side, side, generator=generator)
        cut = [
            drawings[label, :, down : down + side, right : right + side]
            for label, (down, right) in zip(labels.tolist(), shifts, strict=True)
        ]
        return ImageSet("generated", torch.stack(cut) + noise, labels)

    return replace(draw(2000), test=draw(500))
