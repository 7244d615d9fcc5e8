# SPDX-License-Identifier: Apache-2.0
"""Masks made before the first step, which never move: random, SNIP, GraSP, SynFlow."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed as dist

from gossamer.errors import InputError
from gossamer.pruning.calibration.batches import Batch
from gossamer.pruning.gradients.saliency import grasp, snip, synflow, user_passes
from gossamer.pruning.schedules.allocation import (
    best_masks,
    checked_scores,
    layer_counts,
    layer_masks,
    on_the_way,
    project,
    pruned_last,
)
from gossamer.pruning.schedules.base import Event, Schedule
from gossamer.pruning.schedules.moments import uniform_scores
from gossamer.pruning.targets import Target

# Dense scores [R, K] of every layer of a run.
Saliency = Callable[["BeforeTraining"], list[torch.Tensor]]


class Static(Schedule):
    """Settled from the start."""

    def update(self, step: int) -> list[Event]:
        """Nothing ever happens."""
        return []

    def is_settled(self, step: int) -> bool:
        """Always."""
        return True


class Random(Static):
    """A random mask."""

    kind = "random"

    def __init__(self, *, density: float, budget: str, seed: int) -> None:
        self._density, self._budget, self._seed = density, budget, seed

    def start(self) -> list[Event]:
        """Draw it."""
        run = self.run
        scores = [
            uniform_scores(tuple(layer.mask.shape), self._seed, layer.name, 0).to(layer.mask.device)
            for layer in run.layers
        ]
        if run.pattern.fixed_density is None:
            counts = layer_counts(run, self._budget, self._density, scores)
            masks = layer_masks(scores, counts, run.pattern)
        else:
            masks = [run.pattern.project(score) for score in scores]
        run.change(masks, run.pattern)
        return [run.event(0, "mask")]


class BeforeTraining(Static):
    """Masks by what weights are worth at initialisation.

    Args:
        kind: "snip", "grasp" or "synflow".
        density: of all layers together, reached in `rounds` rounds: density^(k / rounds) after k.
        budget: how it is shared among layers.
        rounds: how often is scored and pruned.
        seed: of the positions that `Shuffled` draws.
        temperature: of GraSP's logits.
        data: batches.
        loss: loss(model, batch) -> a tensor with one number; not needed by SynFlow.
    """

    def __init__(
        self,
        *,
        kind: str,
        density: float,
        budget: str,
        rounds: int,
        seed: int,
        temperature: float,
        data: Sequence[Any] | None,
        loss: Callable[..., torch.Tensor] | None,
    ) -> None:
        self.kind = kind
        self._density, self._budget, self._rounds = density, budget, rounds
        self._seed, self._temperature = seed, temperature
        self._data, self._loss = data, loss
        _check_data(kind, data, loss)

    def start(self) -> list[Event]:
        """All rounds."""
        run = self.run
        if self._rounds > 1:
            on_the_way(run.pattern, self._density, self.kind)
        for number in range(1, self._rounds + 1):
            density = self._density ** (number / self._rounds)
            last = number == self._rounds
            pattern = run.pattern if last else on_the_way(run.pattern, density, self.kind)
            scores = [
                pruned_last(checked_scores(layer.name, score.to(layer.mask.device)), layer.mask)
                for layer, score in zip(run.layers, self._scores(), strict=True)
            ]
            run.change(best_masks(run, self._budget, density, scores, pattern), pattern)
        # Batches are not needed again, and a controller lives as long as the run.
        self._data = self._loss = None
        return [run.event(0, "mask", rounds=self._rounds)]

    def _scores(self) -> list[torch.Tensor]:
        run, data = self.run, self._data or ()
        if self.kind == "synflow":
            first = data[0] if isinstance(data[0], Batch) else Batch(data[0])
            return synflow(run.model, [layer.name for layer in run.layers], first)
        targets = [Target(layer.name, layer.module) for layer in run.layers]  # type: ignore[arg-type]
        passes = user_passes(run.model, data, self._loss)
        if self.kind == "snip":
            scores = snip(passes, targets)
        else:
            scores = grasp(passes, targets, self._temperature)
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
        masks = [
            project(
                uniform_scores(tuple(layer.mask.shape), self._seed, layer.name, 0).to(
                    layer.mask.device
                ),
                int(layer.mask.sum()),
                run.pattern,
            )
            for layer in run.layers
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
