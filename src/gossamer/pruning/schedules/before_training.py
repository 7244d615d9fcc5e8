# SPDX-License-Identifier: Apache-2.0
"""Masks made before the first step, which never move: random, SNIP, GraSP, SynFlow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist

from gossamer.errors import InputError
from gossamer.pruning.schedules.base import (
    Events,
    RandomStart,
    checked_scores,
    layer_masks,
    pruned_last,
)
from gossamer.pruning.schedules.saliency import grasp, snip, synflow, user_passes
from gossamer.pruning.targets import Target


class Random(RandomStart):
    """A random mask, settled from the start."""

    kind = "random"

    def update(self, step: int) -> Events:
        """Nothing ever happens."""
        return []

    def is_settled(self, step: int) -> bool:
        """Always."""
        return True


@dataclass(eq=False, kw_only=True)
class BeforeTraining(Random):
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
        needs_loss = self.kind != "synflow"
        if not self.data:
            what = "batches and a loss" if needs_loss else "a batch, for the shape of its input"
            raise InputError(
                f"schedule {self.kind}: needs {what}: gossamer.attach(..., data=[batch],"
                " loss=lambda model, batch: ...)."
            )
        if needs_loss and not callable(self.loss):
            raise InputError(
                f"schedule {self.kind}: needs a loss: gossamer.attach(..., loss=lambda model,"
                " batch: ...), a tensor with one number for a batch of data."
            )

    def start(self) -> Events:
        """All rounds."""
        run = self.run
        if self.rounds > 1:
            self.pattern_at(self.density)
        for number in range(1, self.rounds + 1):
            scores = [
                pruned_last(checked_scores(layer.name, score.to(layer.mask.device)), layer.mask)
                for layer, score in zip(run.layers, self._scores(), strict=True)
            ]
            self.prune(scores, number, self.rounds)
        # Batches are not needed again, and a controller lives as long as the run.
        self.data = self.loss = None
        return [run.event(0, "mask", rounds=self.rounds)]

    def _scores(self) -> list[torch.Tensor]:
        run = self.run
        passes = user_passes(run.model, self.data or (), self.loss)
        if self.kind == "synflow":
            return synflow(run.model, [layer.name for layer in run.layers], passes.batches[0])
        targets = [Target(layer.name, layer.module) for layer in run.layers]
        snips = self.kind == "snip"
        scores = snip(passes, targets) if snips else grasp(passes, targets, self.temperature)
        if run.replicas is not None:
            for score in scores:
                dist.all_reduce(score, group=run.replicas)
        return scores


class Shuffled(BeforeTraining):
    """The ablation: the same counts, drawn positions."""

    def start(self) -> Events:
        """Find the counts on a copy of the weights, then draw."""
        run = self.run
        weights = [layer.weight.detach().clone() for layer in run.layers]
        events = super().start()
        counts = [int(layer.mask.sum()) for layer in run.layers]
        run.change(layer_masks(self.random_scores(0), counts, run.pattern), run.pattern)
        with torch.no_grad():
            # Weights that the first mask had cut come back with their initial values.
            for layer, weight in zip(run.layers, weights, strict=True):
                layer.weight.data.copy_(torch.where(layer.shaped(layer.mask), weight, 0.0))
        return events
