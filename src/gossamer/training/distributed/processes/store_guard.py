# SPDX-License-Identifier: Apache-2.0
"""Calls of the store that are sure to end, by an answer or with the process.

torch bounds the time of `get` alone. A rank whose cable is cut would stay in any other call until
TCP gives up, after a quarter of an hour.
"""

import threading
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Store


class GuardedStore:
    """A store whose methods are called under guard.

    Args:
        store: whose calls may hang.
        interval: seconds between two looks at the calls under way.
        limit: seconds after which a call is given up. They are counted in looks, because a pause of
            this process itself is no silence of the store.
        give_up: called by a thread of the guard; must end the process.
    """

    def __init__(
        self, store: Store, *, interval: float, limit: float, give_up: Callable[[], None]
    ) -> None:
        self._store, self._give_up = store, give_up
        self._interval, self._max_looks = interval, limit / interval
        self._looks: dict[int, int] = {}
        self._lock = threading.Lock()
        self._done = threading.Event()

    def start(self) -> None:
        """Begin to look at calls."""
        threading.Thread(target=self._run, name="store guard", daemon=True).start()

    def stop(self) -> None:
        """Calls are not looked at any more."""
        self._done.set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        def call(*args: Any) -> Any:
            me = threading.get_ident()
            with self._lock:
                self._looks[me] = 0
            try:
                return method(*args)
            finally:
                with self._lock:
                    del self._looks[me]

        return call

    def _run(self) -> None:
        while not self._done.wait(self._interval):
            with self._lock:
                for thread in self._looks:
                    self._looks[thread] += 1
                is_stuck = any(looks > self._max_looks for looks in self._looks.values())
            if is_stuck:
                self._give_up()
                return
