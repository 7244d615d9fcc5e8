# SPDX-License-Identifier: Apache-2.0
"""Searches on a user's own batches, with the user's own metric."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.pruning.calibration.flow import as_batches
from gossamer.runs.stages.recover_data import batch_tokens, samples_of_batches
from gossamer.search.workloads.workload import Measure, Workload, split_data, user_quality

_LEAST_BATCHES = 6


def batch_workload(
    model: nn.Module,
    data: Sequence[Any],
    *,
    choose: Sequence[Any] | None = None,
    report: Sequence[Any] | None = None,
    metric: Measure | None = None,
) -> Workload:
    """Batches as `gossamer.sparsify(data=...)` takes them, or `Batch` with labels."""
    if metric is None:
        raise InputError(
            "shrink: batches of your own need a metric of your own: metric=function, or --metric"
            " module:function. It is called with a model and a list of batches."
        )
    batches = as_batches(data, "shrink")
    first, last = (
        None if part is None else as_batches(part, "shrink") for part in (choose, report)
    )
    training, choosing, reporting = split_data(
        len(batches),
        lambda numbers: [batches[i] for i in numbers],
        (first, last),
        "batches",
        _LEAST_BATCHES,
    )
    timed = training[0]
    inputs = timed.first_tensor()
    if inputs is None:
        raise InputError("shrink: a batch holds no tensor.")
    digest = hashlib.sha256()
    for batch in training:
        found = batch.first_tensor()
        if found is not None:
            flat = found.detach().cpu().contiguous().view(-1).view(torch.uint8)
            digest.update(flat.numpy().tobytes())
    has_pixels = inputs.is_floating_point() and inputs.ndim == 4
    with torch.no_grad():
        outputs = timed.run(model)
    gives_logits = isinstance(outputs, torch.Tensor) or getattr(outputs, "logits", None) is not None
    return Workload(
        model=model,
        batches=lambda: training,
        samples=lambda: samples_of_batches(training),
        loss=None,
        terms={"logits" if gives_logits else "embeddings": 1.0},
        choosing=user_quality(metric, choosing, f"{len(choosing)} batches"),
        reporting=user_quality(metric, reporting, f"{len(reporting)} batches"),
        timed=timed,
        timed_text=f"one batch of {' x '.join(map(str, inputs.shape))}",
        tokens=len(inputs) if has_pixels else batch_tokens(timed),
        digest=digest.hexdigest(),
        example=inputs if has_pixels else None,
    )
