# SPDX-License-Identifier: Apache-2.0
"""Searches on click logs: the quality is AUC. Legend: B rows."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from gossamer.data.clicks import ClickRows, click_metrics
from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.nn.layers.tables import table_of
from gossamer.pruning.calibration.flow import evaluating
from gossamer.pruning.gradients.losses import output_of
from gossamer.runs.calibration import Quality
from gossamer.runs.stages.recover_data import RecoverySamples
from gossamer.search.workloads.workload import Measure, Workload, split_data, user_quality

_CALIBRATED, _CALIBRATION_BATCH = 512, 64
_EVALUATED = 8192
_TIMED = 128


def click_workload(
    model: nn.Module,
    data: ClickRows,
    *,
    choose: ClickRows | None = None,
    report: ClickRows | None = None,
    metric: Measure | None = None,
) -> Workload:
    """AUC of a model on rows with labels, read with the features of that model."""

    def part(numbers: Sequence[int]) -> ClickRows:
        return data.take(np.asarray(numbers))

    training, choosing, reporting = split_data(len(data), part, (choose, report), "click log")
    digest = hashlib.sha256()
    for array in (training.numbers, training.ids, training.labels):
        digest.update(array.tobytes())
    timed = training.take(np.arange(min(_TIMED, len(training))))
    return Workload(
        model=model,
        batches=lambda: list(_batches(training, _CALIBRATION_BATCH, _CALIBRATED)),
        samples=lambda: _samples(training),
        loss=click_loss,
        # One logit is no distribution to match: recovery learns from the labels.
        terms={"hardness": 1.0},
        choosing=_quality(choosing, metric, "choose by"),
        reporting=_quality(reporting, metric, "report"),
        timed=Batch(timed.inputs()),
        timed_text=f"{len(timed)} rows",
        tokens=len(timed),
        digest=digest.hexdigest(),
        kind="clicks" if _has_tables(model) else "other",
    )


def _has_tables(model: nn.Module) -> bool:
    modules = list(model.modules())
    return any(type(m) is nn.EmbeddingBag or table_of(m) is not None for m in modules)


def click_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross entropy of the logits [B] with the labels."""
    if batch.labels is None:
        raise InputError("the loss of a click log needs labels.")
    return binary_cross_entropy_with_logits(output_of(batch.run(model)).float(), batch.labels)


def _quality(rows: ClickRows, metric: Measure | None, purpose: str) -> Quality:
    where = f"{len(rows)} rows"
    if metric is not None:
        return user_quality(metric, rows, where)
    if len(np.unique(rows.labels)) < 2:
        raise InputError(
            f"click log: AUC is undefined on the {len(rows)} rows to {purpose}: all labels are"
            f" {int(rows.labels[0])}. Give more rows, or a file with both: --valid-data,"
            " --test-data."
        )
    return Quality("AUC (%)", False, partial(_auc, rows), where, 100.0)


def _auc(rows: ClickRows, model: nn.Module) -> float:
    with evaluating(model), torch.no_grad():
        logits = [output_of(batch.run(model)).float() for batch in _batches(rows, _EVALUATED)]
    return 100 * click_metrics(torch.cat(logits), torch.from_numpy(rows.labels))["auc"]


def _batches(rows: ClickRows, size: int, most: int | None = None) -> Iterator[Batch]:
    end = len(rows) if most is None else min(len(rows), most)
    for begin in range(0, end, size):
        part = rows.take(np.arange(begin, min(begin + size, end)))
        yield Batch(part.inputs(), labels=part.targets())


def _samples(rows: ClickRows) -> RecoverySamples:
    def make(numbers: Sequence[int]) -> Batch:
        chosen = rows.take(np.asarray(numbers))
        return Batch(chosen.inputs(), None, chosen.targets(), tuple(numbers))

    return RecoverySamples(make, [1] * len(rows), range(len(rows)))
