# SPDX-License-Identifier: Apache-2.0
"""Things timed against each other in one run, and how far the times can be trusted.

`duel` and `contest` time calls, `race` whatever has a stopwatch. A `LoadWatch` looks at what else
the machine does meanwhile.
"""

from gossamer.ops.timing.load import Load, LoadWatch
from gossamer.ops.timing.racing import (
    Duel,
    Race,
    contest,
    duel,
    fair_clock,
    one_thread,
    race,
    spread_of,
    stopwatch,
)

__all__ = [
    "Duel",
    "Load",
    "LoadWatch",
    "Race",
    "contest",
    "duel",
    "fair_clock",
    "one_thread",
    "race",
    "spread_of",
    "stopwatch",
]
