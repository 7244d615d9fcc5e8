# SPDX-License-Identifier: Apache-2.0
"""Step 2: train with state that shrinks with the mask.

Start with `loop` (steps, schedule, compaction, evaluation, checkpoints) and `recovery` (a short run
that wins back what pruning cost). `optim` has optimizers with small state, `memory` counts what
training holds, `distributed` runs a loop on many processes. Names are loaded on first use, so that
the rooms inside that need no torch stay without it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer.training.loop import Loop, LoopSettings
    from gossamer.training.modes import choose_modes
    from gossamer.training.recovery import recover

__all__ = ["Loop", "LoopSettings", "choose_modes", "recover"]

_HOMES = {"Loop": "loop", "LoopSettings": "loop", "choose_modes": "modes", "recover": "recovery"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gossamer.training' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gossamer.training.{_HOMES[name]}"), name)
