# SPDX-License-Identifier: Apache-2.0
"""Step 2: train with state that shrinks with the mask.

Start with `loop` (steps, schedule, compaction, evaluation, checkpoints) and `recovery` (a short run
that wins back what pruning cost). `optim` has optimizers with small state, `memory` counts what
training holds, `distributed` runs a loop on many processes. Names are loaded on first use, so that
the rooms inside that need no torch stay without it.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.training.loop import Loop, LoopSettings
    from gossamer.training.modes import choose_modes
    from gossamer.training.recovery import recover

__all__ = ["Loop", "LoopSettings", "choose_modes", "recover"]

__getattr__, __dir__ = lazy_door(
    __name__,
    {"Loop": "loop", "LoopSettings": "loop", "choose_modes": "modes", "recover": "recovery"},
)
