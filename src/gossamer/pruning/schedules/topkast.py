# SPDX-License-Identifier: Apache-2.0
"""Top-KAST (arXiv 2106.03517): the largest weights run, somewhat more of them train.

Set A, the density D of largest |w|, runs. Set B, D + `exploration`, gets gradients: A and the next
candidates. All other weights rest in a dense store. A penalty pulls at B, outside A by 1/D times
more, so that only weights the loss wants stay large enough to enter A. No dense gradient is needed.
"""

import torch

from gossamer.patterns import Unstructured
from gossamer.pruning.schedules.allocation import best_masks, layer_counts, layer_masks
from gossamer.pruning.schedules.base import Event, Schedule, State
from gossamer.pruning.schedules.dense_store import DenseStore
from gossamer.pruning.schedules.moments import Window


class TopKast(Schedule):
    """Settled at the end of the window: then B = A.

    Args:
        density: D.
        exploration: how much more of the weights trains; 0 is a mask that never moves.
        budget: how D is shared among layers.
        window: A and B are chosen again at its steps.
        penalty: factor of |W_A|^2 + |W_(B without A)|^2 / D in the loss.
    """

    kind = "topkast"
    grows = True

    def __init__(
        self, *, density: float, exploration: float, budget: str, window: Window, penalty: float
    ) -> None:
        self._density, self._exploration = density, exploration
        self._budget, self._window, self._penalty = budget, window, penalty
        self._store: DenseStore | None = None

    def start(self) -> list[Event]:
        """The first two sets."""
        self._store = DenseStore(self.run)
        self._choose(explore=self._exploration > 0.0 and self._window.end > 0)
        return [self.run.event(0, "mask")]

    def update(self, step: int) -> list[Event]:
        """The sets again, if it is due."""
        if self._store is None or not self._window.holds(step):
            return []
        before = [layer.mask.clone() for layer in self.run.layers]
        self._choose(explore=step < self._window.end)
        moved = sum(
            int((layer.mask & ~old).sum())
            for layer, old in zip(self.run.layers, before, strict=True)
        )
        return [self.run.event(step, "mask", grown=moved)]

    def is_settled(self, step: int) -> bool:
        """Without exploration from the start, else from the end of the window on."""
        return self._exploration == 0.0 or step >= self._window.end

    def penalty(self) -> torch.Tensor | None:
        """Of all weights that train."""
        store = self._store
        if store is None or not self._penalty:
            return None
        total: torch.Tensor | None = None
        for number, layer in enumerate(self.run.layers):
            reach = layer.module._buffers.get("_reach")
            trained = layer.mask if reach is None else layer.mask | reach
            # The Parameter is zero where the store has a value: the sum is the weight, and the
            # gradient goes to the Parameter.
            full = layer.weight.flatten(1) + store.values(number)
            density = max(int(layer.mask.sum()), 1) / max(layer.mask.numel(), 1)
            pull = torch.where(layer.mask, 1.0, 1.0 / density)
            term = torch.where(trained, pull * full.square(), 0.0).sum()
            total = term if total is None else total + term
        return None if total is None else self._penalty * total

    def before_optimizer(self) -> None:
        """B trains, also where it does not run."""
        if self._store is not None:
            self._store.lend()

    def after_optimizer(self) -> None:
        """What does not run goes back to the store."""
        if self._store is not None:
            self._store.collect()

    def state_dict(self) -> State:
        """The store and set B."""
        if self._store is None:
            return {}
        reach = {
            layer.name: layer.module._buffers["_reach"].to(torch.uint8)  # type: ignore[union-attr]
            for layer in self.run.layers
        }
        return {"store": self._store.state_dict(), "reach": reach}

    def load_state_dict(self, state: State, step: int) -> None:
        """The store and set B."""
        self._store = None
        for layer in self.run.layers:
            if not self.is_settled(step):
                continue
            layer.module.set_reach(None)
        if "store" in state:
            self._store = DenseStore(self.run)
            reach = [state["reach"][layer.name].bool() for layer in self.run.layers]
            self._store.load_state_dict(state["store"], reach)

    def _choose(self, explore: bool) -> None:
        run, store = self.run, self._store
        if store is None:
            return
        scores = store.magnitudes()
        masks = best_masks(run, self._budget, self._density, scores)
        reach = None
        if explore:
            # A first, then the next largest, whatever the pattern of A is.
            ranked = [s.masked_fill(mask, torch.inf) for s, mask in zip(scores, masks, strict=True)]
            density = min(1.0, self._density + self._exploration)
            budget = "global" if self._budget == "global" else self._budget
            counts = layer_counts(run, budget, density, ranked)
            least = [int(mask.sum()) for mask in masks]
            counts = [max(pair) for pair in zip(counts, least, strict=True)]
            reach = layer_masks(ranked, counts, Unstructured())
        store.move(masks, reach, run.pattern)
        if not explore:
            self._store = None
