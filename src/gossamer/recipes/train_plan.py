# SPDX-License-Identifier: Apache-2.0
"""`gossamer train --dry-run`: steps, bytes and a rough time, with nothing written."""

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gossamer.prune.targets import find_targets
from gossamer.recipes.method_rules import read_pattern
from gossamer.recipes.train_models import build_model
from gossamer.recipes.train_optimizer import build_optimizer
from gossamer.recipes.train_schema import Train
from gossamer.recipes.train_stage import TrainRequest, loop_settings, make_task
from gossamer.train.random_state import seed_all, undisturbed_random


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
    with undisturbed_random():
        task = make_task(request)
        settings = loop_settings(train, task)
        seed_all(train.seed)
        model = build_model(train.model, task.sizes) if task.model is None else task.model
        optimizer = build_optimizer(train.optimizer, model)
        model.train()
        began = time.perf_counter()
        result = task.loss(model, task.batches[0])
        loss = result[0] if isinstance(result, tuple) else result
        torch.autograd.backward(loss)
        optimizer.step()
        seconds = time.perf_counter() - began
    parameters = sum(param.numel() for param in model.parameters())
    schedule = train.schedule
    pruned = kept = 0
    if schedule is not None:
        rules = [None if r is None else list(r) for r in (schedule.targets, schedule.ignore)]
        pruned = sum(target.weight.numel() for target in find_targets(model, *rules))
        kept = round(pruned * (1 - _sparsity(train)))
    dense = parameters * (4 + 4 + _moment_bytes(train))
    return TrainingPlan(
        task=task.name,
        steps=settings.steps,
        batches_per_epoch=len(task.batches),
        parameters=parameters,
        pruned=pruned,
        bytes_by_kind=_bytes_by_kind(train, parameters - pruned, kept, pruned),
        bytes_dense=dense,
        checkpoint_bytes=parameters * (4 + _moment_bytes(train)),
        seconds=seconds * settings.accumulate * settings.steps,
        out=out,
    )


def _bytes_by_kind(train: Train, dense: int, kept: int, pruned: int) -> dict[str, int]:
    """Bytes once masks are final; with compaction off, masked layers stay dense."""
    if train.compaction == "off":
        dense, kept = dense + pruned, 0
    split = train.optimizer.master != "fp32"
    low = {"fp32": 0, "split": 2, "split8": 1}[train.optimizer.master]
    weight = 2 if split else 4
    resident = pruned * weight if train.compaction == "resident" else 0
    return {
        "weights": 4 * dense + weight * kept + resident,
        "gradients": 4 * dense + weight * kept,
        "masks": (pruned if train.compaction == "off" else 0) + -(-pruned // 8),
        "low bits of masters": low * kept,
        "moments": _moment_bytes(train) * (dense + kept),
    }


def _moment_bytes(train: Train) -> int:
    moments = (
        2 if train.optimizer.name in ("adamw", "lamb") else int(bool(train.optimizer.momentum))
    )
    if train.optimizer.name == "lars":
        moments = 1
    return moments * (1 if train.optimizer.moments == "8bit" else 4)


def _sparsity(train: Train) -> float:
    if train.schedule is None:
        return 0.0
    fixed = read_pattern(train.schedule.pattern).fixed_density
    if fixed is not None:
        return 1 - fixed
    return train.schedule.sparsity or 0.0
