# SPDX-License-Identifier: Apache-2.0
"""Heartbeats, the one cause of a failure, and an end for all ranks within a bound.

Every rank says in the store that it lives and looks after the next rank; so a stopped or dead one
is noticed by one other, whatever the number of ranks. A collective that fails only says that a peer
is gone: the survivors then wait a moment, see who has fallen silent, and name it.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from gossamer.errors import DistributedError, GossamerError
from gossamer.training.loop.endings import TrainingStopped

_CAUSE = "cause"
_LOST_PEER = ("gloo", "connection", "timed out", "timeout", "broken pipe", "socket", "nccl", "recv")


class Cause(NamedTuple):
    """Why a run failed, as the first rank that knew it says."""

    rank: int
    text: str
    exit_code: int = DistributedError.exit_code


class GuardedStore:
    """A store whose calls are sure to end, by an answer or with the process.

    torch bounds the time of `get` alone. A rank whose cable is cut would stay in any other call
    until TCP gives up, after a quarter of an hour.

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


class HeartbeatWatch:
    """Signs of life of this rank, and of the next one.

    Args:
        store: shared by all ranks.
        rank: of this process.
        world: number of ranks.
        interval: seconds between two signs.
        limit: seconds of silence after which a rank is lost.
        holds_store: whether the store ends with this process.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        *,
        interval: float,
        limit: float,
        holds_store: bool = False,
    ) -> None:
        self.step = 0
        self.rank = rank
        self._world = world
        self._interval, self.limit = interval, limit
        self._store = GuardedStore(store, interval=interval, limit=limit, give_up=self._cut_off)
        self._holds_store = holds_store
        self._known: Cause | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to send signs of life."""
        self._store.start()
        self._thread.start()

    def tell(self, cause: Cause) -> Cause:
        """Make it the cause, unless there is one already; the one that holds."""
        try:
            held = self._store.compare_set(_CAUSE, "", json.dumps(cause))
        except RuntimeError:
            return self._known or cause
        self._known = Cause(*json.loads(held))
        return self._known

    def cause(self) -> Cause | None:
        """The cause that a rank told; known for good, even if the store goes with that rank."""
        with suppress(RuntimeError):
            if self._known is None and self._store.check([_CAUSE]):
                self._known = Cause(*json.loads(self._store.get(_CAUSE)))
        return self._known

    def lost_peer(self, error: BaseException) -> Cause:
        """Who is gone, after a collective failed here; takes a few intervals at most."""
        with suppress(RuntimeError):
            self._store.set(f"failing/{self.rank}", "1")
            before = {r: self._beat(r) for r in range(self._world) if r != self.rank}
            began = time.monotonic()
            while True:
                found = self.cause()
                if found is not None:
                    return found
                silent = [
                    rank
                    for rank, beat in before.items()
                    if not self._store.check([f"failing/{rank}"]) and self._beat(rank) == beat
                ]
                intervals = (time.monotonic() - began) / self._interval
                # On a busy machine more than one may be late: the lost one stays so.
                if intervals > (1.5 if len(silent) < 2 else 6.0):
                    break
                time.sleep(min(0.05, self._interval / 10))
            text = f"rank {self.rank} failed at step {self.step}: {str(error)[:300]}"
            return self.tell(self._silence(silent[0]) if silent else Cause(self.rank, text))
        return self._known or self._store_is_gone()

    def leave(self, seconds: float | None = None) -> None:
        """No more signs of life: the run is over, or this rank knows why it fails.

        The rank that holds the store stays until the others have left too, `seconds` or two
        intervals at most: they look once per interval, and dead ones never will.
        """
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._interval)
        end = time.monotonic() + (2 * self._interval if seconds is None else seconds)
        with suppress(RuntimeError):
            self._store.add("left", 1)
            while self._holds_store and time.monotonic() < end:
                if self._store.add("left", 0) == self._world:
                    break
                time.sleep(min(0.05, self._interval / 10))
        self._store.stop()

    def _store_is_gone(self) -> Cause:
        return Cause(
            1 if self._world > 1 else 0,
            f"the store of the run is gone, and with it rank 0, at step {self.step}. All ranks"
            " ended; go on with --resume.",
        )

    def _cut_off(self) -> None:
        # On this side of a cut nobody else may know of it, so every rank speaks for itself.
        text = (
            f"rank {self.rank} cannot reach the store of the run after step {self.step}: the"
            " network is cut, or the host of rank 0 is gone. Go on with --resume."
        )
        self._end(Cause(self.rank, text))

    def _silence(self, rank: int) -> Cause:
        # Steps are taken together, so that the last common one is this rank's.
        return Cause(
            self.rank,
            f"rank {rank} stopped answering after step {self.step}. All ranks ended; go on with"
            " --resume, or let torchrun start them again with --max-restarts.",
        )

    def _beat(self, rank: int) -> str:
        key = f"beat/{rank}"
        beat: bytes = self._store.get(key) if self._store.check([key]) else b""
        return beat.decode()

    def _run(self) -> None:
        next_rank = (self.rank + 1) % self._world
        seen, count = "", 0
        since = last_look = time.monotonic()
        while not self._done.wait(self._interval):
            try:
                count += 1
                self._store.set(f"beat/{self.rank}", str(count))
                now, beat = time.monotonic(), self._beat(next_rank)
                # A pause of this process itself is no silence of the other.
                if beat != seen or now - last_look > 2 * self._interval:
                    seen, since = beat, now
                last_look = now
                found = self.cause()
                if found is None and now - since > self.limit:
                    found = self.tell(self._silence(next_rank))
            except RuntimeError:
                found = self._known or self._store_is_gone()
            if found is not None and not self._done.wait(2 * self._interval):
                self._end(found)

    def _end(self, cause: Cause) -> None:
        """The main thread did not notice by itself: it may be inside anything."""
        if cause.rank == self.rank:
            sys.stderr.write(f"gossamer: {cause.text}\n")
            sys.stderr.flush()
        os._exit(cause.exit_code)


@contextmanager
def end_together(watch: HeartbeatWatch) -> Iterator[None]:
    """Turn whatever ends the block into one told cause and silent ends of all other ranks."""
    try:
        yield
    except TrainingStopped as error:
        watch.leave(watch.limit)
        # All ranks stopped after the same step: nobody waits for anybody.
        dist.destroy_process_group()
        if watch.rank:
            raise SystemExit(error.exit_code) from None
        raise
    except BaseException as error:
        # torchrun asks the others to end as soon as one is gone; naming it comes first.
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        text = str(error)
        lost = (
            isinstance(error, RuntimeError)
            and not isinstance(error, GossamerError)
            and (
                isinstance(error, dist.DistError)
                or any(word in text.lower() for word in _LOST_PEER)
            )
        )
        if lost:
            cause = watch.lost_peer(error)
        else:
            code = getattr(error, "exit_code", DistributedError.exit_code)
            cause = watch.tell(Cause(watch.rank, f"step {watch.step}: {text[:300]}", code))
        watch.leave()
        if cause.rank != watch.rank:
            raise SystemExit(cause.exit_code) from None
        if lost:
            raise DistributedError(cause.text) from error
        raise
