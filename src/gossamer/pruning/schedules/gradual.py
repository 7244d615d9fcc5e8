# SPDX-License-Identifier: Apache-2.0
"""Pruning by magnitude in the middle of training: at one step, or along a cubic ramp."""

import torch

from gossamer.pruning.schedules.allocation import (
    best_masks,
    layer_counts,
    layer_masks,
    magnitudes,
    on_the_way,
)
from gossamer.pruning.schedules.base import Event, Schedule, State
from gossamer.pruning.schedules.dense_store import DenseStore
from gossamer.pruning.schedules.moments import Window, cubic


class OneShot(Schedule):
    """All at once after step `at`."""

    kind = "oneshot"

    def __init__(self, *, density: float, budget: str, at: int) -> None:
        self._density, self._budget, self._at = density, budget, at

    def start(self) -> list[Event]:
        """At step 0, if that is the moment."""
        return self.update(0)

    def update(self, step: int) -> list[Event]:
        """Prune if the moment has come."""
        if step != self._at:
            return []
        run = self.run
        run.change(
            best_masks(run, self._budget, self._density, magnitudes(run.layers)), run.pattern
        )
        return [run.event(step, "mask")]

    def is_settled(self, step: int) -> bool:
        """After the one time."""
        return step >= self._at


class Gradual(Schedule):
    """Gradual magnitude pruning (arXiv 1710.01878).

    With budgets uniform and erk each layer follows the cubic from its first to its last count, so
    that no count ever rises by rounding. With `allow_regrow` pruned weights go on training in a
    dense store, and may come back until the end.
    """

    kind = "gradual"

    def __init__(
        self, *, density: float, initial_density: float, budget: str, window: Window, regrow: bool
    ) -> None:
        self._density, self._initial = density, initial_density
        self._budget, self._window = budget, window
        self.grows = regrow
        self._store: DenseStore | None = None

    def start(self) -> list[Event]:
        """The dense store, and the first mask if the ramp begins at once."""
        on_the_way(self.run.pattern, self._density, self.kind)
        if self.grows:
            self._store = DenseStore(self.run)
        return self.update(0)

    def update(self, step: int) -> list[Event]:
        """One step of the ramp, if it is due."""
        if not self._window.holds(step):
            return []
        run, progress = self.run, self._window.progress(step)
        density = 1.0 - cubic(1.0 - self._initial, 1.0 - self._density, progress)
        pattern = run.pattern if progress == 1.0 else on_the_way(run.pattern, density, self.kind)
        masks = self._masks(density, progress)
        if pattern.fixed_density is not None:
            masks = [pattern.project(score) for score in self._scores()]
        if self._store is None:
            run.change(masks, pattern)
        else:
            last = progress == 1.0
            reach = None if last else [torch.ones_like(mask) for mask in masks]
            self._store.move(masks, reach, pattern)
            self._store = None if last else self._store
        return [run.event(step, "mask", density=density)]

    def is_settled(self, step: int) -> bool:
        """At the end of the ramp."""
        return step >= self._window.end

    def before_optimizer(self) -> None:
        """Stored weights train as well."""
        if self._store is not None:
            self._store.lend()

    def after_optimizer(self) -> None:
        """And go back to the store."""
        if self._store is not None:
            self._store.collect()

    def state_dict(self) -> State:
        """The dense store."""
        return {} if self._store is None else {"store": self._store.state_dict()}

    def load_state_dict(self, state: State, step: int) -> None:
        """The dense store."""
        self._store = None
        if "store" in state:
            self._store = DenseStore(self.run)
            begun = self._window.begin <= step
            self._store.load_state_dict(
                state["store"],
                [torch.ones_like(layer.mask) for layer in self.run.layers] if begun else None,
            )

    def _scores(self) -> list[torch.Tensor]:
        if self._store is not None:
            return self._store.magnitudes()
        return magnitudes(self.run.layers)

    def _masks(self, density: float, progress: float) -> list[torch.Tensor]:
        run, scores = self.run, self._scores()
        if run.pattern.fixed_density is not None:
            return []
        if self._budget == "global":
            return best_masks(run, "global", density, scores)
        first = layer_counts(run, self._budget, self._initial) if self._initial < 1.0 else None
        last = layer_counts(run, self._budget, self._density)
        counts = []
        for number, layer in enumerate(run.layers):
            start = layer.mask.numel() if first is None else first[number]
            counts.append(round(cubic(start, last[number], progress)))
        return layer_masks(scores, counts, run.pattern)
