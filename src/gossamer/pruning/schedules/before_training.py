# SPDX-License-Identifier: Apache-2.0
"""Masks made before the first step, which never move: random, SNIP, GraSP, SynFlow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist

from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.pruning.schedules.allocation import (
    checked_scores,
    pruned_last,
    random_scores,
)
from gossamer.pruning.schedules.base import Schedule
from gossamer.pruning.schedules.run import Event
from gossamer.pruning.schedules.saliency import grasp, snip, synflow, user_passes
from gossamer.pruning.solvers import keep_highest
from gossamer.pruning.targets import Target


@dataclass(eq=False, kw_only=True)
class Static(Schedule):
    """Settled from the start.

    Attributes:
        seed: of positions that are drawn.
    """

    seed: int

    def update(self, step: int) -> list[Event]:
        """Nothing ever happens."""
        return []

    def is_settled(self, step: int) -> bool:
        """Always."""
        return True


class Random(Static):
    """A random mask."""

    kind = "random"

    def start(self) -> list[Event]:
        """Draw it."""
        self.prune(random_scores(self.run.layers, self.seed))
        return [self.run.event(0, "mask")]


@dataclass(eq=False, kw_only=True)
class BeforeTraining(Static):
    """Masks by what weights are worth at initialisation.

    Attributes:
        kind: "snip", "grasp" or "synflow".
        density: of all layers together, reached in `rounds` rounds: density^(k / rounds) after k.
        rounds: how often is scored and pruned.
        temperature: of GraSP's logits.
        data: batches.
        loss: loss(model, batch) -> a tensor with one number; not needed by SynFlow.
    """

    kind: str
    rounds: int
    temperature: float
    data: Sequence[Any] | None
    loss: Callable[..., torch.Tensor] | None

    def __post_init__(self) -> None:
        _check_data(self.kind, self.data, self.loss)

    def start(self) -> list[Event]:
        """All rounds."""
        run = self.run
        if self.rounds > 1:
            self.pattern_at(self.density)
        for number in range(1, self.rounds + 1):
            scores = [
                pruned_last(checked_scores(layer.name, score.to(layer.mask.device)), layer.mask)
                for layer, score in zip(run.layers, self._scores(), strict=True)
            ]
            self.prune_round(number, self.rounds, scores)
        # Batches are not needed again, and a controller lives as long as the run.
        self.data = self.loss = None
        return [run.event(0, "mask", rounds=self.rounds)]

    def _scores(self) -> list[torch.Tensor]:
        run, data = self.run, self.data or ()
        if self.kind == "synflow":
            first = data[0] if isinstance(data[0], Batch) else Batch(data[0])
            return synflow(run.model, [layer.name for layer in run.layers], first)
        targets = [Target(layer.name, layer.module) for layer in run.layers]
        passes = user_passes(run.model, data, self.loss)
        if self.kind == "snip":
            scores = snip(passes, targets)
        else:
            scores = grasp(passes, targets, self.temperature)
        if run.replicas is not None:
            for score in scores:
                dist.all_reduce(score, group=run.replicas)
        return scores


class Shuffled(BeforeTraining):
    """The ablation: the same counts, drawn positions."""

    def start(self) -> list[Event]:
        """Find the counts on a copy of the weights, then draw."""
        run = self.run
        weights = [layer.weight.detach().clone() for layer in run.layers]
        events = super().start()
        drawn = zip(random_scores(run.layers, self.seed), run.layers, strict=True)
        masks = [
            keep_highest(scores, int(layer.mask.sum()), run.pattern) for scores, layer in drawn
        ]
        run.change(masks, run.pattern)
        with torch.no_grad():
            # Weights that the first mask had cut come back with their initial values.
            for layer, weight in zip(run.layers, weights, strict=True):
                layer.weight.data.copy_(torch.where(layer.shaped(layer.mask), weight, 0.0))
        return events


def _check_data(kind: str, data: Any, loss: Any) -> None:
    if data is None or not len(data):
        what = "a batch, for the shape of its input" if kind == "synflow" else "batches and a loss"
        raise InputError(
            f"schedule {kind}: needs {what}: gossamer.attach(..., data=[batch],"
            " loss=lambda model, batch: ...)."
        )
    if kind != "synflow" and not callable(loss):
        raise InputError(
            f"schedule {kind}: needs a loss: gossamer.attach(..., loss=lambda model, batch: ...),"
            " a tensor with one number for a batch of data."
        )
