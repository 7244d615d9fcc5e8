# SPDX-License-Identifier: Apache-2.0
"""Pruning by magnitude in the middle of training: at one step, on a ramp, in phases, in rounds.

AC/DC (arXiv 2106.12379): compressed and dense phases alternate, the last one is compressed.

Iterative: train, prune, go back, again (arXiv 1803.03635, 1912.05671, 2003.02389). One training
lasts `length` steps, of which rounds after the first repeat those from `to` on. After round r of R
a fraction density^(r/R) is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_map_only

from gossamer.pruning.schedules.base import Events, Schedule, State, cubic, layer_masks
from gossamer.pruning.schedules.moving import DenseStore, StoredSchedule

__all__ = [
    "AcDc",
    "Gradual",
    "Iterative",
    "OneShot",
    "phases",
]


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


Phase = Literal["dense", "sparse"]


def phases(begin: int, phase: int, last_dense: int, end: int) -> dict[int, Phase]:
    """Step -> what begins there.

    Sparse at `begin`, then alternating every `phase` steps until `last_dense`, where the last dense
    phase begins; sparse for good from `end`. In hundredths of a run, 10, 5, 75 and 85 are the
    published schedule: sparse at 10, 20, ..., 70 and 85, dense at 15, 25, ..., 75.
    """
    alternating: Iterator[Phase] = cycle(("sparse", "dense"))
    found = dict(zip(range(begin, last_dense, phase), alternating, strict=False))
    if len(found) % 2:
        found[last_dense] = "dense"
    return {**found, end: "sparse"}


@dataclass(eq=False, kw_only=True)
class AcDc(Schedule):
    """Masks by magnitude at each compression; decompressed weights come back as zeros.

    Attributes:
        changes: see `phases`.
        reset_momentum: clear the optimizer's state at each decompression.
    """

    changes: dict[int, Phase]
    reset_momentum: bool
    kind = "acdc"
    grows = True

    def update(self, step: int) -> Events:
        """Compress or decompress, if it is due; the first phase may be sparse."""
        change, run = self.changes.get(step), self.run
        if change is None:
            return []
        if change == "sparse":
            self.prune()
            return [run.event(step, "mask")]
        run.change([torch.ones_like(layer.mask) for layer in run.layers])
        if self.reset_momentum:
            for layer in run.layers:
                run.entries.forget(layer.name, layer.weight)
        return [run.event(step, "dense")]

    def is_settled(self, step: int) -> bool:
        """After the last compression."""
        return step >= max(self.changes)


Rewind = Literal["init", "step", "lr", "finetune"]


@dataclass(eq=False, kw_only=True)
class Iterative(Schedule):
    """Iterative pruning by magnitude with rewinding.

    `init` and `step` restore all parameters, buffers and the optimizer's state of step 0 or `to`,
    within the mask. The learning rate belongs to the loop: each event "rewind" says in
    `details["lr_step"]` at which step of one training its schedule continues.
    """

    rounds: int
    rewind: Rewind
    to: int
    length: int
    kind = "iterative"
    _weights: dict[str, torch.Tensor] = field(init=False, default_factory=dict)
    _slots: dict[str, dict[str, Any]] = field(init=False, default_factory=dict)

    def start(self) -> Events:
        """Remember the weights if this is where rounds go back to."""
        self.pattern_at(self.density)
        self._remember(0)
        return []

    def update(self, step: int) -> Events:
        """Prune and go back at the end of each round."""
        self._remember(step)
        number, rest = divmod(step - self.length, self.length - self.to)
        number += 1
        if rest or not 1 <= number <= self.rounds:
            return []
        run = self.run
        self.prune(None, number, self.rounds)
        events = [run.event(step, "mask", round=number)]
        if self._weights:
            self._restore()
        lr_step = self.length if self.rewind == "finetune" else self.to
        events.append(run.event(step, "rewind", mode=self.rewind, lr_step=lr_step, round=number))
        if number == self.rounds:
            self._weights, self._slots = {}, {}
        return events

    def is_settled(self, step: int) -> bool:
        """After the last round."""
        return step >= self.length + (self.rounds - 1) * (self.length - self.to)

    def state_dict(self) -> State:
        """The remembered weights and optimizer state."""
        return _copied({"weights": self._weights, "slots": self._slots})

    def load_state_dict(self, state: State, step: int) -> None:
        """As `state_dict` gave it."""
        held = _copied(state)
        self._weights, self._slots = held["weights"], held["slots"]

    def _remember(self, step: int) -> None:
        if self.rewind not in ("init", "step") or step != self.to or step > self.length:
            return
        self._weights = {name: tensor.detach().clone() for name, tensor in self._tensors()}
        state = self.run.entries.optimizer.state
        self._slots = {
            name: _copied({k: v for k, v in state.get(parameter, {}).items() if v is not None})
            for name, parameter in self.run.model.named_parameters()
        }

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        model = self.run.model
        masks = ("mask_bits", "_mask")
        buffers = [b for b in model.named_buffers() if b[0].rsplit(".", 1)[-1] not in masks]
        return [*model.named_parameters(), *buffers]

    @torch.no_grad()
    def _restore(self) -> None:
        run = self.run
        state = run.entries.optimizer.state
        for name, tensor in self._tensors():
            tensor.data.copy_(self._weights[name])
        for name, parameter in run.model.named_parameters():
            state.pop(parameter, None)
            if self._slots[name]:
                state[parameter] = _copied(self._slots[name])
        for layer in run.layers:
            pruned = layer.shaped(~layer.mask)
            layer.weight.data.masked_fill_(pruned, 0.0)
            run.entries.reset(layer.weight, pruned)


def _copied(state: State) -> State:
    """The same dicts and numbers with tensors of their own."""
    copied: State = tree_map_only(torch.Tensor, torch.clone, state)
    return copied
