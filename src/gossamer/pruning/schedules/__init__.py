# SPDX-License-Identifier: Apache-2.0
"""When masks are made and how they move: schedules, and the controller that carries them out.

Start with `Schedule`. It works on a `Run` (layers, optimizer, other processes), and a `Controller`
tells it after every optimizer step. `take_layers` makes layers ready for that, `release_layers`
ends it. The schedules are in rooms: `magnitude` (by size, in one go or in steps), `moving` (weights
go and come) and `early` (fixed at the start).
"""

from gossamer.pruning.schedules.base import Schedule, Window
from gossamer.pruning.schedules.controller import Controller
from gossamer.pruning.schedules.layers import release_layers, take_layers
from gossamer.pruning.schedules.optimizer_entries import OptimizerEntries
from gossamer.pruning.schedules.run import Run, default_replicas

__all__ = [
    "Controller",
    "OptimizerEntries",
    "Run",
    "Schedule",
    "Window",
    "default_replicas",
    "release_layers",
    "take_layers",
]
