# SPDX-License-Identifier: Apache-2.0
"""Weights that train but do not run.

A masked layer promises exact zeros wherever its weight is pruned. Schedules that keep training
pruned weights hold those values here and lend them to the Parameter for the time of the optimizer's
step, in which momentum, weight decay and the update reach them as any other weight.

Top-KAST (arXiv 2106.03517): the largest weights run, somewhat more of them train.

Set A, the density D of largest |w|, runs. Set B, D + `exploration`, gets gradients: A and the next
candidates. All other weights rest in a dense store. A penalty pulls at B, outside A by 1/D times
more, so that only weights the loss wants stay large enough to enter A. No dense gradient is needed.
"""

from dataclasses import dataclass, field

import torch

from gossamer.patterns import Pattern, Unstructured
from gossamer.pruning.schedules.base import (
    Events,
    PerLayer,
    State,
    WindowedSchedule,
    checked_scores,
    layer_masks,
)
from gossamer.pruning.schedules.layers import ControlledLayer
from gossamer.pruning.schedules.run import Run, trained_entries


class DenseStore:
    """Values of the pruned weights of all layers.

    Attributes:
        values: [R, K] by layer, zeros where it is kept.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.values = {layer: torch.zeros_like(layer.matrix) for layer in run.layers}

    def full(self, layer: ControlledLayer) -> torch.Tensor:
        """The weight [R, K] of a layer with its pruned values."""
        return torch.where(layer.mask, layer.weight.detach().flatten(1), self.values[layer])

    @torch.no_grad()
    def lend(self) -> None:
        """Before the optimizer's step: stored values that train enter the Parameter."""
        for layer, values in self.values.items():
            trained = layer.shaped(trained_entries(layer) & ~layer.mask)
            weight = layer.weight.data
            weight.copy_(torch.where(trained, layer.shaped(values), weight))

    @torch.no_grad()
    def collect(self) -> None:
        """After the optimizer's step: they leave it again."""
        for layer, values in self.values.items():
            trained = trained_entries(layer) & ~layer.mask
            self.values[layer] = torch.where(trained, layer.weight.detach().flatten(1), values)
            layer.weight.data.masked_fill_(layer.shaped(~layer.mask), 0.0)

    @torch.no_grad()
    def move(self, masks: PerLayer, pattern: Pattern, reach: PerLayer | None) -> None:
        """Other weights run; those that stop keep their value here."""
        full = [self.full(layer) for layer in self.values]
        self._run.change(masks, pattern, reach)
        for layer, mask, weight in zip(self._run.layers, masks, full, strict=True):
            layer.weight.data.copy_(layer.shaped(torch.where(mask, weight, 0.0)))
            self.values[layer] = torch.where(mask, 0.0, weight)


@dataclass(eq=False, kw_only=True)
class StoredSchedule(WindowedSchedule):
    """A schedule whose pruned weights train as well, for as long as it has a store."""

    _store: DenseStore | None = field(init=False, default=None)

    def before_optimizer(self) -> None:
        """Stored weights train as well."""
        if self._store is not None:
            self._store.lend()

    def after_optimizer(self) -> None:
        """What does not run goes back to the store."""
        if self._store is not None:
            self._store.collect()

    def magnitudes(self) -> list[torch.Tensor]:
        """|w| of every layer, stored values included."""
        store = self._store
        if store is None:
            return super().magnitudes()
        return [checked_scores(layer.name, store.full(layer).abs()) for layer in store.values]

    def state_dict(self) -> State:
        """The stored values by layer."""
        if self._store is None:
            return {}
        return {"store": {layer.name: v.clone() for layer, v in self._store.values.items()}}

    def _load_store(self, state: State, reach: PerLayer | None) -> None:
        """The store of a `state_dict`, if it had one; `reach`: what trains besides kept weights."""
        self._store = None
        if "store" in state:
            self._store = DenseStore(self.run)
            for number, layer in enumerate(self.run.layers):
                self._store.values[layer] = state["store"][layer.name].clone()
                layer.set_reach(None if reach is None else reach[number])


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
