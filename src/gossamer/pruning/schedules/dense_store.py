# SPDX-License-Identifier: Apache-2.0
"""Weights that train but do not run.

A masked layer promises exact zeros wherever its weight is pruned. Schedules that keep training
pruned weights hold those values here and lend them to the Parameter for the time of the optimizer's
step, in which momentum, weight decay and the update reach them as any other weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gossamer.patterns import Pattern
from gossamer.pruning.schedules.allocation import checked_scores
from gossamer.pruning.schedules.base import State, WindowedSchedule
from gossamer.pruning.schedules.run import Run, trained_entries


class DenseStore:
    """Values of the pruned weights of all layers, zeros elsewhere."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._values = [torch.zeros_like(layer.matrix) for layer in run.layers]

    def full(self, number: int) -> torch.Tensor:
        """The weight [R, K] of a layer with its pruned values."""
        layer = self._run.layers[number]
        return torch.where(layer.mask, layer.weight.detach().flatten(1), self._values[number])

    def values(self, number: int) -> torch.Tensor:
        """The stored values [R, K] of a layer, zeros where it is kept."""
        return self._values[number]

    def magnitudes(self) -> list[torch.Tensor]:
        """|w| of every layer, pruned values included."""
        return [
            checked_scores(layer.name, self.full(number).abs())
            for number, layer in enumerate(self._run.layers)
        ]

    @torch.no_grad()
    def lend(self) -> None:
        """Before the optimizer's step: stored values that train enter the Parameter."""
        for number, layer in enumerate(self._run.layers):
            trained = layer.shaped(trained_entries(layer) & ~layer.mask)
            weight = layer.weight.data
            weight.copy_(torch.where(trained, layer.shaped(self._values[number]), weight))

    @torch.no_grad()
    def collect(self) -> None:
        """After the optimizer's step: they leave it again."""
        for number, layer in enumerate(self._run.layers):
            trained = trained_entries(layer) & ~layer.mask
            matrix = layer.weight.detach().flatten(1)
            self._values[number] = torch.where(trained, matrix, self._values[number])
            layer.weight.data.masked_fill_(layer.shaped(~layer.mask), 0.0)

    @torch.no_grad()
    def move(
        self,
        masks: Sequence[torch.Tensor],
        reach: Sequence[torch.Tensor] | None,
        pattern: Pattern,
    ) -> None:
        """Other weights run; those that stop keep their value here."""
        full = [self.full(number) for number in range(len(self._run.layers))]
        self._run.change(masks, pattern, reach)
        for number, (layer, mask) in enumerate(zip(self._run.layers, masks, strict=True)):
            layer.weight.data.copy_(layer.shaped(torch.where(mask, full[number], 0.0)))
            self._values[number] = torch.where(mask, 0.0, full[number])

    def state_dict(self) -> State:
        """The values by layer."""
        names = (layer.name for layer in self._run.layers)
        return {name: value.clone() for name, value in zip(names, self._values, strict=True)}

    def load_state_dict(self, state: State, reach: Sequence[torch.Tensor] | None) -> None:
        """The values by layer, and which weights train besides the kept ones."""
        self._values = [state[layer.name].clone() for layer in self._run.layers]
        for number, layer in enumerate(self._run.layers):
            for module in layer.everyone:
                module.set_reach(None if reach is None else reach[number])


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

    def _load_store(self, state: State, reach: Sequence[torch.Tensor] | None) -> None:
        """The store of a `state_dict`, if it had one; `reach` as in `DenseStore`."""
        self._store = None
        if "store" in state:
            self._store = DenseStore(self.run)
            self._store.load_state_dict(state["store"], reach)
