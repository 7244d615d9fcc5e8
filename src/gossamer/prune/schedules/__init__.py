# SPDX-License-Identifier: Apache-2.0
"""When masks are made and how they move: schedules, and the controller that carries them out."""

from gossamer.prune.schedules.base import Event, Schedule
from gossamer.prune.schedules.controller import Controller

__all__ = ["Controller", "Event", "Schedule"]
