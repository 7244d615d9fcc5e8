# SPDX-License-Identifier: Apache-2.0
"""What ends a run early: signals, gradients that are not numbers, and memory that is used up.

Of Ctrl-C and SIGTERM the first asks the loop to save and stop, the second stops at once.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from gossamer.errors import GossamerError, ResourceError
from gossamer.out_of_memory import is_out_of_memory, memory_error

__all__ = [
    "Interrupts",
    "TrainingDiverged",
    "TrainingStopped",
    "memory_for",
]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingStopped(GossamerError):
    """A signal ended the run after its state was saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class TrainingDiverged(GossamerError, RuntimeError):
    """Gradients were NaN or Inf several times in a row."""

    exit_code = 4


class Interrupts:
    """A context in which signals are noted instead of raised."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        # Python lets only the main thread set handlers; elsewhere the caller owns the signals.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            return
        sys.stderr.write("gossamer: stopped at once; the checkpoints before are valid.\n")
        sys.stderr.flush()
        # No clean-up: whatever is being written has no name that a reader accepts.
        os._exit(128 + number)


@contextmanager
def memory_for(phase: str, advice: str) -> Iterator[None]:
    """Turn a failed allocation inside the block into ResourceError.

    Args:
        phase: what is being done, for the message.
        advice: what to make smaller.
    """
    try:
        yield
    except (MemoryError, RuntimeError, ResourceError) as error:
        if not is_out_of_memory(error):
            raise
        raise memory_error(error, phase, advice) from error
