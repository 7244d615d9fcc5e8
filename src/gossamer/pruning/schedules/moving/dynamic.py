# SPDX-License-Identifier: Apache-2.0
"""Sparse from the first step, with a mask that moves: SET and RigL (arXiv 1911.11134), `reopen`.

Every so often each layer drops its smallest weights and grows as many elsewhere: at random (SET),
or where the dense gradient is largest (RigL). The fraction falls with a cosine, so that masks come
to rest. A weight that is dropped and grown in the same exchange keeps value and optimizer state.

The exchange happens after the optimizer's step, with the gradient of that same step; the reference
code skips the optimizer at such steps instead.
"""

from dataclasses import dataclass, field

import torch

from gossamer.errors import InputError
from gossamer.patterns import Pattern
from gossamer.patterns.selection import keep_largest
from gossamer.pruning.legal_counts import keep_highest
from gossamer.pruning.schedules.base import (
    Events,
    RandomStart,
    State,
    WindowedSchedule,
    checked_scores,
    cosine,
    cubic,
    pruned_last,
)
from gossamer.pruning.schedules.layers import ControlledLayer

_MAX_POSTPONED = 3


@dataclass(eq=False, kw_only=True)
class Dynamic(RandomStart, WindowedSchedule):
    """Fixed counts, moving positions: exchanges happen at the window's steps.

    Attributes:
        budget: uniform or erk.
        drop: fraction exchanged in the beginning.
        seed: of the first mask, drawn at step 0, and of SET's growth.
    """

    drop: float
    grows = True

    def counts(self, step: int) -> list[int]:
        """How many weights each layer keeps after the exchange of `step`: as many as before."""
        return [int(layer.mask.sum()) for layer in self.run.layers]

    def update(self, step: int) -> Events:
        """Exchange, if it is due."""
        if not self._is_due(step):
            return []
        return self._exchange(step, self.random_scores(step))

    def _is_due(self, step: int) -> bool:
        # At the end of the window the cosine is 0, there is nothing left to exchange.
        return 0 < step < self.window.end and self.window.holds(step)

    def _exchange(self, step: int, growth: list[torch.Tensor]) -> Events:
        """Grow where `growth` [R, K], at least 0, is highest."""
        run, fraction = self.run, cosine(self.drop, self.window.progress(step))
        masks, num_new = [], 0
        for layer, scores, count in zip(run.layers, growth, self.counts(step), strict=True):
            mask = exchanged(layer, scores, fraction, count, run.pattern)
            num_new += int((mask & ~layer.mask).sum())
            masks.append(mask)
        run.change(masks, run.pattern)
        return [run.event(step, "mask", fraction=fraction, grown=num_new)]


class SetSchedule(Dynamic):
    """Grows at random."""

    kind = "set"


@dataclass(eq=False, kw_only=True)
class RigL(Dynamic):
    """Grows where the dense gradient is largest; it is computed for these steps only.

    Attributes:
        gradient_steps: the gradient is summed over so many steps up to the exchange.
    """

    gradient_steps: int = 1
    kind = "rigl"
    _postponed = 0

    def wants_gradients(self, step: int) -> bool:
        """Up to update steps, and one step later where gradients were not finite."""
        ahead = range(step, step + self.gradient_steps)
        return self._postponed > 0 or any(self._is_due(later) for later in ahead)

    def update(self, step: int) -> Events:
        """Exchange, if it is due and gradients are finite."""
        if not self._is_due(step) and not self._postponed:
            self.run.agree_gradients()
            return []
        gradients = self.run.gradients()
        self.run.arm(False)
        for layer, gradient in zip(self.run.layers, gradients, strict=True):
            if not gradient.isfinite().all():
                self._postponed += 1
                if self._postponed > _MAX_POSTPONED:
                    raise InputError(
                        f"{layer.name}: its gradient was NaN or infinite in {self._postponed}"
                        " steps in a row, so RigL cannot grow. Lower the learning rate or clip"
                        " gradients."
                    )
                return [self.run.event(step, "postponed", layer=layer.name)]
        self._postponed = 0
        return self._exchange(step, [gradient.abs() for gradient in gradients])

    def state_dict(self) -> State:
        """Whether an exchange waits for finite gradients, and those collected so far."""
        return {"postponed": self._postponed, "gradients": self.run.partial_gradients()}

    def load_state_dict(self, state: State, step: int) -> None:
        """As `state_dict` gave it."""
        self._postponed = int(state["postponed"])
        if not self.is_settled(step):
            self.run.restore_gradients(state["gradients"])


@dataclass(eq=False, kw_only=True)
class Reopen(RigL):
    """RigL that begins with the masks of the model and moves their density, fast first.

    What opens is what the dense gradient wants most; what closes is the smallest. A model that grew
    has zeros between its copies: this opens them while it trains.
    """

    kind = "reopen"
    _held: list[int] = field(default_factory=list)

    def start(self) -> Events:
        """Nothing moves yet; the masks take on the pattern, and what they keep is noted."""
        self.run.change([layer.mask.clone() for layer in self.run.layers], self.run.pattern)
        self._held = super().counts(0)
        return []

    def counts(self, step: int) -> list[int]:
        """On the way from the held counts to those of the density, 7/8 of it at half time."""
        sizes = [torch.zeros(layer.mask.shape) for layer in self.run.layers]
        progress = self.window.progress(step)
        return [
            round(cubic(held, final, progress))
            for held, final in zip(self._held, self.layer_counts(sizes, self.density), strict=True)
        ]

    def _is_due(self, step: int) -> bool:
        return step > 0 and self.window.holds(step)

    def state_dict(self) -> State:
        """That of RigL, and the counts at the start."""
        return {**super().state_dict(), "held": list(self._held)}

    def load_state_dict(self, state: State, step: int) -> None:
        """As `state_dict` gave it."""
        super().load_state_dict(state, step)
        self._held = [int(count) for count in state["held"]]


def exchanged(
    layer: ControlledLayer, growth: torch.Tensor, fraction: float, count: int, pattern: Pattern
) -> torch.Tensor:
    """A mask of `count` weights: `fraction` of the kept ones, at least, make way for others."""
    mask, kept = layer.mask, int(layer.mask.sum())
    num_dropped = int(kept * fraction)
    if num_dropped == 0 and count == kept:
        return mask.clone()
    size = pruned_last(checked_scores(layer.name, layer.matrix.abs()), mask)
    stay = min(kept, count) - num_dropped
    if pattern.fixed_density is None:
        survivors = keep_highest(size, max(stay, 0), pattern) & mask
    else:
        # Any weight may go: the pattern then fills up the groups that lost one.
        survivors = keep_largest(size.flatten(), max(stay, 0)).view(mask.shape)
    wanted = growth.masked_fill(survivors, torch.inf)
    return keep_highest(checked_scores(layer.name, wanted), count, pattern)


DYNAMIC: dict[str, type[Dynamic]] = {made.kind: made for made in (SetSchedule, RigL, Reopen)}
