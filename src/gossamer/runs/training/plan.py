# SPDX-License-Identifier: Apache-2.0
"""`gossamer train --dry-run`: steps, bytes and a rough time, with nothing written."""

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gossamer.pruning.targets import find_targets
from gossamer.recipes.stages import Train
from gossamer.runs.training.models import build_optimizer, table_sizes
from gossamer.runs.training.request import TrainRequest, make_task, model_of
from gossamer.runs.training.stage import loop_settings, only_loss
from gossamer.training.checkpoint.random_state import seed_all, undisturbed_random
from gossamer.training.memory.formulas import (
    KINDS,
    MASK_BYTES,
    StateCost,
    dense_cost,
    moment_bytes,
    state_cost,
)

_LOW_BYTES = {"fp32": 0, "split": 2, "split8": 1}


@dataclass(frozen=True)
class TrainingPlan:
    """What a run would need.

    Attributes:
        task: what is learned.
        steps: optimizer steps.
        batches_per_epoch: batches of the data.
        parameters: of the model.
        pruned: parameters of the layers that the schedule prunes.
        bytes_by_kind: bytes at the end of the run: weights, gradients, masks, moments.
        bytes_dense: the same without pruning.
        checkpoint_bytes: one checkpoint before compaction.
        seconds: of the whole run at the dense step's speed, as loaded as now.
        out: where the artifact would go.
    """

    task: str
    steps: int
    batches_per_epoch: int
    parameters: int
    pruned: int
    bytes_by_kind: dict[str, int]
    bytes_dense: int
    checkpoint_bytes: int
    seconds: float
    out: str

    @property
    def document(self) -> dict[str, Any]:
        """For --json."""
        return {**asdict(self), "bytes": sum(self.bytes_by_kind.values()), "written": False}


def plan_run(request: TrainRequest, out: str) -> TrainingPlan:
    """Read the data, build the model, take one step on a copy of nothing, write nothing."""
    train = request.train
    with undisturbed_random(), tempfile.TemporaryDirectory() as scratch:
        task = make_task(request, Path(scratch))
        settings = loop_settings(train, task)
        seed_all(train.seed)
        model = model_of(train, task)
        optimizer = build_optimizer(train.optimizer, model, train.compaction)
        model.train()
        began = time.perf_counter()
        torch.autograd.backward(only_loss(task.loss(model, task.batches[0])))
        optimizer.step()
        seconds = time.perf_counter() - began
    parameters = sum(param.numel() for param in model.parameters())
    schedule, targets = train.schedule, []
    if schedule is not None:
        targets = find_targets(model, schedule.targets, schedule.ignore)
    pruned = sum(target.weight.numel() for target in targets)
    by_rows, row_bytes, table_moments = table_sizes(train.optimizer, model)
    # A gradient holds touched rows alone.
    tables = {"weights": row_bytes, "moments": 4 * table_moments}
    dense = dense_cost(weight_bytes=4, master_bytes=0, moment_bytes=_moment_bytes(train))
    per_parameter = dense.bytes_per_parameter(1.0)
    return TrainingPlan(
        task=task.name,
        steps=settings.steps,
        batches_per_epoch=len(task.batches),
        parameters=parameters,
        pruned=pruned,
        bytes_by_kind=_with(tables, _bytes_by_kind(train, dense, parameters - by_rows, pruned)),
        bytes_dense=sum(tables.values()) + round((parameters - by_rows) * per_parameter),
        # Gradients are not saved.
        checkpoint_bytes=sum(tables.values()) + round((parameters - by_rows) * (per_parameter - 4)),
        seconds=seconds * settings.accumulate * settings.steps,
        out=out,
    )


def _bytes_by_kind(train: Train, dense: StateCost, parameters: int, pruned: int) -> dict[str, int]:
    """Bytes once masks are final; with compaction off, masked layers stay dense.

    How much a slim model keeps depends on which channels go: at most what the dense one has.
    """
    rest = dense.by_kind(1.0)
    if train.compaction == "slim":
        sparse = rest
    elif train.compaction == "off":
        # One byte and one bit of mask beside every dense weight.
        sparse = {**rest, "positions": 1 + MASK_BYTES}
    else:
        schedule, sparsity = train.schedule, 0.0
        if schedule is not None:
            fixed = schedule.fixed_density
            sparsity = schedule.sparsity or 0.0 if fixed is None else 1 - fixed
        master_bytes = _LOW_BYTES[train.optimizer.master]
        weight_bytes = 2 if master_bytes else 4
        cost = state_cost(
            weight_bytes=weight_bytes,
            master_bytes=master_bytes,
            moment_bytes=_moment_bytes(train),
            dense_bytes=weight_bytes if train.compaction == "resident" else 0,
        )
        if train.compaction == "samo":
            cost = StateCost.samo(moment_bytes=_moment_bytes(train))
        sparse = cost.by_kind(1 - sparsity)
    both = {
        kind: round(rest.get(kind, 0) * (parameters - pruned) + sparse.get(kind, 0) * pruned)
        for kind in KINDS
    }
    return {kind: count for kind, count in both.items() if count}


def _with(tables: dict[str, int], others: dict[str, int]) -> dict[str, int]:
    """Bytes of tables and of everything else."""
    both = {kind: others.get(kind, 0) + tables.get(kind, 0) for kind in (*others, *tables)}
    return {kind: count for kind, count in both.items() if count}


def _moment_bytes(train: Train) -> float:
    settings = train.optimizer
    moments = {"adamw": 2, "lamb": 2, "lars": 1, "sgd": int(bool(settings.momentum))}
    return moment_bytes(moments[settings.name], eight_bit=settings.moments == "8bit")
