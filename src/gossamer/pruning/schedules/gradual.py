# SPDX-License-Identifier: Apache-2.0
"""Pruning by magnitude in the middle of training: at one step, or along a cubic ramp."""

from dataclasses import dataclass

import torch

from gossamer.pruning.schedules.base import Events, Schedule, State, cubic, layer_masks
from gossamer.pruning.schedules.dense_store import DenseStore, StoredSchedule


@dataclass(eq=False, kw_only=True)
class OneShot(Schedule):
    """All at once after step `at`."""

    at: int
    kind = "oneshot"

    def update(self, step: int) -> Events:
        """Prune if the moment has come."""
        if step != self.at:
            return []
        self.prune()
        return [self.run.event(step, "mask")]

    def is_settled(self, step: int) -> bool:
        """After the one time."""
        return step >= self.at


@dataclass(eq=False, kw_only=True)
class Gradual(StoredSchedule):
    """Gradual magnitude pruning (arXiv 1710.01878).

    With budgets uniform and erk each layer follows the cubic from its first to its last count, so
    that no count ever rises by rounding.

    Attributes:
        initial_density: where the ramp begins.
        regrow: pruned weights keep training in a dense store, and may come back until the end.
    """

    initial_density: float
    regrow: bool
    kind = "gradual"

    def __post_init__(self) -> None:
        self.grows = self.regrow

    def start(self) -> Events:
        """The dense store, and the first mask if the ramp begins at once."""
        self.pattern_at(self.density)
        if self.grows:
            self._store = DenseStore(self.run)
        return super().start()

    def update(self, step: int) -> Events:
        """One step of the ramp, if it is due."""
        if not self.window.holds(step):
            return []
        run, progress = self.run, self.window.progress(step)
        last = progress == 1.0
        density = 1.0 - cubic(1.0 - self.initial_density, 1.0 - self.density, progress)
        pattern, store, scores = self.pattern_at(density, last), self._store, self.magnitudes()
        if pattern.fixed_density is not None or self.budget == "global":
            masks = self.best_masks(scores, density, pattern)
        else:
            ends = (self.layer_counts(scores, d) for d in (self.initial_density, self.density))
            counts = [round(cubic(a, b, progress)) for a, b in zip(*ends, strict=True)]
            masks = layer_masks(scores, counts, pattern)
        if store is None:
            run.change(masks, pattern)
        else:
            store.move(masks, pattern, None if last else self._everything())
            self._store = None if last else store
        return [run.event(step, "mask", density=density)]

    def load_state_dict(self, state: State, step: int) -> None:
        """The dense store."""
        has_begun = "store" in state and self.window.begin <= step
        self._load_store(state, self._everything() if has_begun else None)

    def _everything(self) -> list[torch.Tensor]:
        return [torch.ones_like(layer.mask) for layer in self.run.layers]
