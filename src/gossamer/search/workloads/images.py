# SPDX-License-Identifier: Apache-2.0
"""Searches on images with labels. Legend: N images, C channels, H height, W width."""

import hashlib
from collections.abc import Sequence

import torch
from torch import nn

from gossamer.data.files import ImageSet
from gossamer.nn.batch import Batch
from gossamer.nn.layer_kinds import kind_name
from gossamer.runs.calibration import Quality
from gossamer.runs.stages.recover_data import RecoverySamples
from gossamer.search.workloads.text import label_loss
from gossamer.search.workloads.workload import (
    Measure,
    Workload,
    accuracy_quality,
    split_data,
    user_quality,
)

_CALIBRATED, _CALIBRATION_BATCH = 512, 64
# A convolution sees as many samples as an image has pixels: fewer images tell it as much.
_CONVOLVED_PIXELS = 2**17
_EVALUATED = 256


def image_workload(
    model: nn.Module,
    data: ImageSet,
    *,
    choose: ImageSet | None = None,
    report: ImageSet | None = None,
    metric: Measure | None = None,
) -> Workload:
    """Accuracy of a classifier; the final figure is of x_test and y_test, if the file has them."""
    given = (choose, report or data.test)
    training, choosing, reporting = split_data(len(data.labels), data.part, given, data.name)
    example = training.pixels[:1]
    calibrated = min(len(training.pixels), _CALIBRATED)
    if "conv" in map(kind_name, model.modules()):
        enough = _CONVOLVED_PIXELS // example.shape[-2:].numel()
        calibrated = min(max(enough, _CALIBRATION_BATCH), calibrated)
    calibration = training.part(range(calibrated))
    digest = hashlib.sha256(training.pixels.numpy().tobytes() + training.labels.numpy().tobytes())
    return Workload(
        model=model,
        batches=lambda: _batches(calibration, _CALIBRATION_BATCH),
        samples=lambda: _samples(training),
        loss=label_loss,
        terms={"logits": 1.0, "hardness": 0.5},
        choosing=_quality(choosing, metric),
        reporting=_quality(reporting, metric),
        timed=Batch(example),
        timed_text=f"1 image of {' x '.join(map(str, example.shape[1:]))}",
        tokens=1,
        digest=digest.hexdigest(),
        example=example,
        images=calibration.pixels,
    )


def _quality(data: ImageSet, metric: Measure | None) -> Quality:
    if metric is not None:
        return user_quality(metric, data, data.name)
    where = f"{len(data.labels)} images, {data.name}"
    return accuracy_quality(lambda: _batches(data, _EVALUATED), where)


def _batches(data: ImageSet, size: int) -> list[Batch]:
    parts = (torch.split(tensor, size) for tensor in (data.pixels, data.labels))
    return [Batch(x, labels=y) for x, y in zip(*parts, strict=True)]


def _samples(data: ImageSet) -> RecoverySamples:
    def make(numbers: Sequence[int]) -> Batch:
        chosen = list(numbers)
        return Batch(data.pixels[chosen], None, data.labels[chosen], tuple(chosen))

    area = data.pixels.shape[-2:].numel()
    return RecoverySamples(make, [area] * len(data.labels), range(len(data.labels)))
