# SPDX-License-Identifier: Apache-2.0
"""The chance of a click, from numbers and categories. Legend: B rows of a batch."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from gossamer.data.batches import generator_of
from gossamer.data.clicks import (
    FEATURES_FILE,
    ClickBatches,
    Features,
    click_metrics,
    columns_of,
    open_clicks,
)
from gossamer.data.evaluation import SharedEvaluation
from gossamer.data.tasks.task import Task
from gossamer.errors import InputError
from gossamer.io.safe_files.directories import exclusive_lock
from gossamer.zoo.problems import click_problem, write_criteo

GENERATED = "zoo:clicks"
_GENERATED_ROWS = 20_000
_EVAL_BATCH = 8192


def clicks_task(
    data: str,
    batch: int,
    seed: int,
    *,
    columns: Mapping[str, Any],
    window: int,
    folder: Path,
    evaluation: str | None = None,
    features: Features | None = None,
) -> Task:
    """Rows of a click log in Criteo's form or in a table, or generated ones: `zoo:clicks`.

    Args:
        data: a .tsv, .csv, .txt or .jsonl file, or "zoo:clicks", which has Criteo's form.
        batch: rows in a batch.
        seed: of the order of rows.
        columns: what each column is, as `gossamer.data.clicks.columns_of` takes it.
        window: rows that are shuffled together.
        folder: where the log is kept as arrays.
        evaluation: a file to report on instead of a part of `data`.
        features: of a model that is trained further: its vocabularies and statistics.
    """
    roles = columns_of(columns)
    if features is not None and not _same_inputs(features, roles):
        raise InputError(
            "data: the roles or rules of the columns are not those that the model was trained with."
            " Use the section data.clicks of the recipe that trained it."
        )
    folder.mkdir(parents=True, exist_ok=True)
    measured_on = None if evaluation is None else Path(evaluation)
    # Of several processes on one machine the first one reads the log, and the others find arrays.
    with exclusive_lock(folder, wait=True):
        path = _generated(folder) if data == GENERATED else Path(data)
        log = open_clicks(folder / "arrays", roles, path, measured_on, features)
    notes = [*log.notes]
    for part in ("validation", "test"):
        labels = log.parts[part].labels
        if len(labels) and len(np.unique(labels)) == 1:
            notes.append(
                f"AUC is undefined on the {part} part: all of its {len(labels)} labels are"
                f" {int(labels[0])}. Only the log loss was measured there."
            )

    def loss(model: nn.Module, rows: Any) -> torch.Tensor:
        return binary_cross_entropy_with_logits(model(*rows.inputs()).float(), rows.targets())

    def report(model: nn.Module) -> dict[str, float]:
        found = _measured(log.parts["test"])(model)
        return {f"test_{name.replace('eval_', 'log_')}": value for name, value in found.items()}

    validated = len(log.parts["validation"]) > 0
    return Task(
        name="clicks",
        batches=ClickBatches(log.parts["train"], batch, seed, window),
        loss=loss,
        evaluate=_measured(log.parts["validation"]) if validated else None,
        tokens=batch,
        sizes={"numbers": len(roles.numbers), "rows": log.features.rows},
        digest=log.digest,
        beside={FEATURES_FILE: log.features.content},
        report=report if len(log.parts["test"]) else None,
        adopt=lambda model: log.features.mark(model, data),
        notes=tuple(notes),
    )


def _measured(rows: Any) -> SharedEvaluation:
    """Numbers of a model on one part of a log."""
    bounds = [*range(0, len(rows), _EVAL_BATCH), len(rows)]
    blocks = list(pairwise(bounds))

    def outputs(model: nn.Module, number: int) -> torch.Tensor:
        block = rows.block(*(blocks[number] if number < len(blocks) else (0, 0)))
        logits: torch.Tensor = model(*block.inputs()).float()
        return logits

    def conclude(logits: torch.Tensor) -> dict[str, float]:
        return click_metrics(logits, torch.from_numpy(np.array(rows.labels)))

    return SharedEvaluation(tuple(end - begin for begin, end in blocks), outputs, conclude)


def _same_inputs(features: Features, roles: Any) -> bool:
    """Whether rows become the same numbers and ids, wherever they are split."""
    of_model = features.columns
    names = ("time", "split_by", "validation", "test", "bad_rows", "label", "format")
    return bool(replace(roles, **{name: getattr(of_model, name) for name in names}) == of_model)


def _generated(folder: Path) -> Path:
    path = folder / "generated.tsv"
    write_criteo(click_problem(generator_of(0, _GENERATED_ROWS), num_rows=_GENERATED_ROWS), path)
    return path
