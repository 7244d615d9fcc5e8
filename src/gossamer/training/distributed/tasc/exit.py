# SPDX-License-Identifier: Apache-2.0
"""An exit that waits until the threads of a process group have let go of what Python lent them.

A thread of gloo lets go of tensors and callbacks after it has told the result, and needs the
interpreter for that. If the interpreter has begun to end by then, Python ends the thread inside C++
code that must not be unwound, and the process aborts ("terminate called without an active
exception"). A thread that waits for the interpreter gets it while the main thread sleeps.
"""

import atexit
import time

_SLEEPS, _SECONDS = 20, 0.01


def let_go_at_exit() -> None:
    """Give waiting threads the interpreter before this process ends; once is enough."""
    atexit.unregister(_sleep)
    atexit.register(_sleep)


def _sleep() -> None:
    for _ in range(_SLEEPS):
        time.sleep(_SECONDS)
