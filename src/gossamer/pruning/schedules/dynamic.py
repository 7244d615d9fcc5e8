# SPDX-License-Identifier: Apache-2.0
"""Sparse from the first step, with a mask that moves: SET and RigL (arXiv 1911.11134).

Every so often each layer drops its smallest weights and grows as many elsewhere: at random (SET),
or where the dense gradient is largest (RigL). The fraction falls with a cosine, so that masks come
to rest. A weight that is dropped and grown in the same exchange keeps value and optimizer state.

The exchange happens after the optimizer's step, with the gradient of that same step; the reference
code skips the optimizer at such steps instead.
"""

from dataclasses import dataclass

import torch

from gossamer.errors import InputError
from gossamer.patterns import Pattern, keep_largest
from gossamer.pruning.schedules.base import (
    Events,
    RandomStart,
    State,
    WindowedSchedule,
    checked_scores,
    cosine,
    pruned_last,
)
from gossamer.pruning.schedules.layers import ControlledLayer
from gossamer.pruning.solvers import keep_highest

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
        for layer, scores in zip(run.layers, growth, strict=True):
            mask = exchanged(layer, scores, fraction, run.pattern)
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


def exchanged(
    layer: ControlledLayer, growth: torch.Tensor, fraction: float, pattern: Pattern
) -> torch.Tensor:
    """The mask after dropping `fraction` of the kept weights and growing as many."""
    mask, kept = layer.mask, int(layer.mask.sum())
    num_dropped = int(kept * fraction)
    if num_dropped == 0:
        return mask.clone()
    size = pruned_last(checked_scores(layer.name, layer.matrix.abs()), mask)
    if pattern.fixed_density is None:
        survivors = keep_highest(size, kept - num_dropped, pattern) & mask
    else:
        # Any weight may go: the pattern then fills up the groups that lost one.
        survivors = keep_largest(size.flatten(), kept - num_dropped).view(mask.shape)
    wanted = growth.masked_fill(survivors, torch.inf)
    return keep_highest(checked_scores(layer.name, wanted), kept, pattern)
