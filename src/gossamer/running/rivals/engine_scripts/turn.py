# SPDX-License-Identifier: Apache-2.0
"""How every contender is timed in its turn, here and in the processes of other engines.

The only one of these scripts that is also used on this side; it imports nothing of the package.
"""

import time
from collections.abc import Callable

__all__ = [
    "turn",
]

# The first call of a turn refills the caches that the contender before has emptied.
_MIN_CALLS, _MAX_CALLS = 2, 20
_TURN_SECONDS = 0.01


def turn(call: Callable[[], object], threads: int) -> float:
    """The fastest of a few calls in a row, in seconds.

    On one thread the time is that of the processor: on a busy machine a call of 50 ms never runs
    undisturbed, and by the wall clock it would look twice as slow as short ones do. Where nothing
    else runs, the two clocks agree within 1 %.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    best = float("inf")
    start = clock()
    for number in range(_MAX_CALLS):
        before = clock()
        call()
        after = clock()
        best = min(best, after - before)
        if number + 1 >= _MIN_CALLS and after - start > _TURN_SECONDS:
            break
    return best
