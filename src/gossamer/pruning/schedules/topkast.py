# SPDX-License-Identifier: Apache-2.0
"""Top-KAST (arXiv 2106.03517): the largest weights run, somewhat more of them train.

Set A, the density D of largest |w|, runs. Set B, D + `exploration`, gets gradients: A and the next
candidates. All other weights rest in a dense store. A penalty pulls at B, outside A by 1/D times
more, so that only weights the loss wants stay large enough to enter A. No dense gradient is needed.
"""

from dataclasses import dataclass

import torch

from gossamer.patterns import Unstructured
from gossamer.pruning.schedules.base import Events, State, layer_masks
from gossamer.pruning.schedules.dense_store import DenseStore, StoredSchedule
from gossamer.pruning.schedules.run import trained_entries


@dataclass(eq=False, kw_only=True)
class TopKast(StoredSchedule):
    """Settled at the end of the window: then B = A.

    Attributes:
        density: D.
        exploration: how much more of the weights trains; 0 is a mask that never moves.
        window: A and B are chosen again at its steps.
        penalty: factor of |W_A|^2 + |W_(B without A)|^2 / D in the loss.
    """

    exploration: float
    penalty: float
    kind = "topkast"
    grows = True

    def start(self) -> Events:
        """The first two sets."""
        self._choose(DenseStore(self.run), explore=self.exploration > 0.0 and self.window.end > 0)
        return [self.run.event(0, "mask")]

    def update(self, step: int) -> Events:
        """The sets again, if it is due."""
        if self._store is None or not self.window.holds(step):
            return []
        before = [layer.mask.clone() for layer in self.run.layers]
        self._choose(self._store, explore=step < self.window.end)
        moved = sum(
            int((layer.mask & ~old).sum())
            for layer, old in zip(self.run.layers, before, strict=True)
        )
        return [self.run.event(step, "mask", grown=moved)]

    def is_settled(self, step: int) -> bool:
        """Without exploration from the start, else from the end of the window on."""
        return self.exploration == 0.0 or super().is_settled(step)

    def loss_term(self) -> torch.Tensor | None:
        """Of all weights that train."""
        store = self._store
        if store is None or not self.penalty:
            return None
        terms = []
        for layer, values in store.values.items():
            # The Parameter is zero where the store has a value: the sum is the weight, and the
            # gradient goes to the Parameter.
            full = layer.weight.flatten(1) + values
            density = max(int(layer.mask.sum()), 1) / max(layer.mask.numel(), 1)
            pull = torch.where(layer.mask, 1.0, 1.0 / density)
            terms.append(torch.where(trained_entries(layer), pull * full.square(), 0.0).sum())
        return self.penalty * sum(terms)  # type: ignore[return-value]

    def state_dict(self) -> State:
        """The store and set B."""
        if self._store is None:
            return {}
        reach = {
            layer.name: layer.module._buffers["_reach"].to(torch.uint8)  # type: ignore[union-attr]
            for layer in self.run.layers
        }
        return {**super().state_dict(), "reach": reach}

    def load_state_dict(self, state: State, step: int) -> None:
        """The store and set B."""
        layers = self.run.layers
        if self.is_settled(step):
            for layer in layers:
                layer.set_reach(None)
        held = state.get("reach", {})
        self._load_store(state, [held[layer.name].bool() for layer in layers if held])

    def _choose(self, store: DenseStore, explore: bool) -> None:
        run, self._store = self.run, store
        scores = self.magnitudes()
        masks = self.best_masks(scores, self.density, run.pattern)
        reach = None
        if explore:
            # A first, then the next largest, whatever the pattern of A is.
            ranked = [s.masked_fill(mask, torch.inf) for s, mask in zip(scores, masks, strict=True)]
            wanted = self.layer_counts(ranked, min(1.0, self.density + self.exploration))
            counts = [
                max(count, int(mask.sum())) for count, mask in zip(wanted, masks, strict=True)
            ]
            reach = layer_masks(ranked, counts, Unstructured())
        store.move(masks, run.pattern, reach)
        if not explore:
            self._store = None
