# SPDX-License-Identifier: Apache-2.0
"""Classification of images. Legend: B batch, C channels, H height, W width."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gossamer.data.batches import ShuffledBatches, generator_of
from gossamer.data.tasks.digests import tensors_digest
from gossamer.data.tasks.image_files import Images, read_images
from gossamer.data.tasks.task import Task

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
    images = generated_images() if data == GENERATED else read_images(Path(data))
    mean, std = images.x_train.mean(), images.x_train.std().clamp(min=1e-6)
    channels, height, width = images.x_train.shape[1:]
    x_train, x_test = ((x - mean) / std for x in (images.x_train, images.x_test))
    if flat:
        x_train, x_test = x_train.flatten(1), x_test.flatten(1)

    def take(index: torch.Tensor) -> Any:
        return x_train[index], images.y_train[index]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y_B = batch
        return cross_entropy(model(x).float(), y_B)

    def evaluate(model: nn.Module) -> dict[str, float]:
        right, total = 0, 0.0
        for x, y_B in zip(
            torch.split(x_test, _EVAL_BATCH), torch.split(images.y_test, _EVAL_BATCH), strict=True
        ):
            logits = model(x).float()
            right += int((logits.argmax(-1) == y_B).sum())
            total += float(cross_entropy(logits, y_B, reduction="sum"))
        count = len(images.y_test)
        return {"accuracy": right / count, "eval_loss": total / count}

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
            "classes": images.num_classes,
        },
        example=x_train[:batch],
        digest=tensors_digest(images.x_train, images.y_train, images.x_test, images.y_test),
    )


def generated_images(
    num_train: int = 2000, num_test: int = 500, side: int = 12, num_classes: int = 6
) -> Images:
    """Noisy, shifted drawings of random smooth patterns: learned in seconds, not trivial."""
    generator = generator_of(0, num_classes, side)
    coarse = torch.randn(num_classes, 1, 4, 4, generator=generator)
    drawings = nn.functional.interpolate(coarse, size=(side + 4, side + 4), mode="bilinear")

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(num_classes, (count,), generator=generator)
        shifts = torch.randint(5, (count, 2), generator=generator).tolist()
        noise = 0.8 * torch.randn(count, 1, side, side, generator=generator)
        cut = [
            drawings[label, :, down : down + side, right : right + side]
            for label, (down, right) in zip(labels.tolist(), shifts, strict=True)
        ]
        return torch.stack(cut) + noise, labels

    return Images(*draw(num_train), *draw(num_test))
