# SPDX-License-Identifier: Apache-2.0
"""When masks are made and how they move: schedules, and the controller that carries them out."""

from gossamer.pruning.schedules.base import Schedule
from gossamer.pruning.schedules.controller import Controller
from gossamer.pruning.schedules.run import Event

__all__ = ["Controller", "Event", "Schedule"]
