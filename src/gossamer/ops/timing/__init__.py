# SPDX-License-Identifier: Apache-2.0
"""Things timed against each other in one run, and how far the times can be trusted.

`duel` times two calls in turns and gives a `Duel`, `contest` any number and gives a `Race`, and
`race` times whatever has a `stopwatch`. `fair_clock` counts this process's own time where it can,
`spread_of` says how far the samples of one runner lie apart. `load` watches what else the machine
does meanwhile.
"""

from gossamer.ops.timing.racing import (
    Duel,
    Race,
    contest,
    duel,
    fair_clock,
    race,
    spread_of,
    stopwatch,
)

__all__ = [
    "Duel",
    "Race",
    "contest",
    "duel",
    "fair_clock",
    "race",
    "spread_of",
    "stopwatch",
]
