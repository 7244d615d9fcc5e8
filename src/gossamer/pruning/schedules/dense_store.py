# SPDX-License-Identifier: Apache-2.0
"""Weights that train but do not run.

A masked layer promises exact zeros wherever its weight is pruned. Schedules that keep training
pruned weights hold those values here and lend them to the Parameter for the time of the optimizer's
step, in which momentum, weight decay and the update reach them as any other weight.
"""

from dataclasses import dataclass, field

import torch

from gossamer.patterns import Pattern
from gossamer.pruning.schedules.base import PerLayer, State, WindowedSchedule, checked_scores
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
