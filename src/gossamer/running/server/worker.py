# SPDX-License-Identifier: Apache-2.0
"""What all who call the model have in common: a bounded queue and one thread that empties it."""

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, TypeVar

from gossamer.errors import GossamerError, KernelError
from gossamer.running.server.limits import Limits, QueueFull
from gossamer.running.server.metrics import Metrics

_log = logging.getLogger(__name__)
Item = TypeVar("Item")


class Worker(ABC, Generic[Item]):
    """A bounded queue and the thread that empties it.

    The lock `_changed` guards everything and is never held while the model runs.

    Args:
        name: of the thread.
        limits: of the queue.
        metrics: what the worker counts in.
    """

    def __init__(self, name: str, limits: Limits, metrics: Metrics) -> None:
        self._limits, self._metrics = limits, metrics
        self._queue: deque[Item] = deque()
        self._changed = threading.Condition()
        self._closed = False
        # A daemon: a call of the model that never ends must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def close(self, seconds: float = 10.0) -> None:
        """Let the worker finish, and end its thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def __len__(self) -> int:
        return len(self._queue)

    def _enqueue(self, item: Item) -> Item:
        """Queue the work of a request; QueueFull if too many wait."""
        with self._changed:
            if self._closed or len(self._queue) >= self._limits.max_queue:
                raise QueueFull
            self._queue.append(item)
            self._changed.notify()
        return item

    @abstractmethod
    def _work(self) -> None:
        """What the thread does."""


def as_failure(error: Exception, what: str) -> GossamerError:
    """A failed call of the model as a sentence for clients; the log gets the traceback.

    Call it where `error` was caught.
    """
    if isinstance(error, GossamerError):
        return error
    _log.error("the model failed on %s", what, exc_info=error)
    return KernelError(f"the model failed on {what} ({type(error).__name__}: {str(error)[:200]}).")
