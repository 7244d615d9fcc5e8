# SPDX-License-Identifier: Apache-2.0
"""Requests that wait share a call of the model: while one batch runs, the next one gathers.

Nothing waits for company: an idle server runs a lone request at once.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

import torch

from gossamer.errors import KernelError
from gossamer.running.server.failure import as_failure
from gossamer.running.server.limits import Limits, QueueFull
from gossamer.running.server.metrics import Metrics

RunBatch = Callable[[Sequence[torch.Tensor]], torch.Tensor]


@dataclass(eq=False)
class Ticket:
    """A request: its texts, how many of them have been taken, and the rows found for them."""

    ids: list[torch.Tensor]
    future: "Future[torch.Tensor]" = field(default_factory=Future)
    taken: int = 0
    rows: list[torch.Tensor] = field(default_factory=list)


class Batcher:
    """A bounded queue and the thread that empties it.

    Args:
        run: one row per text; called by one thread.
        limits: of the queue and of a batch.
        metrics: gets the sizes of batches.
        turn: held while the model runs, where others use it too.
    """

    def __init__(
        self, run: RunBatch, limits: Limits, metrics: Metrics, turn: AbstractContextManager[object]
    ) -> None:
        self._run, self._limits, self._metrics, self._turn = run, limits, metrics, turn
        self._queue: deque[Ticket] = deque()
        self._changed = threading.Condition()
        self._closed = False
        # A daemon: a call of the model that never ends must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="gossamer-batches", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def close(self, seconds: float = 10.0) -> None:
        """Finish what waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, ids: Sequence[torch.Tensor]) -> Ticket:
        """Queue the texts of a request; QueueFull if too many wait."""
        ticket = Ticket(list(ids))
        with self._changed:
            if self._closed or len(self._queue) >= self._limits.max_queue:
                raise QueueFull
            self._queue.append(ticket)
            self._changed.notify()
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """Forget a request whose client has gone; what runs already is finished."""
        with self._changed:
            if ticket in self._queue:
                self._queue.remove(ticket)
        ticket.future.cancel()

    def _work(self) -> None:
        while batch := self._take():
            ids = [ticket.ids[number] for ticket, number in batch]
            self._metrics.batch_texts.observe(len(ids))
            self._metrics.batch_tokens.observe(sum(map(len, ids)))
            try:
                with self._turn:
                    rows = self._run(ids)
                if not bool(torch.isfinite(rows).all()):
                    raise KernelError("the model gives numbers that are NaN or infinite.")
            except Exception as error:
                self._fail([ticket for ticket, _ in batch], as_failure(error, f"{len(ids)} texts"))
            else:
                _deliver(batch, rows)

    def _take(self) -> list[tuple[Ticket, int]]:
        """Texts of the requests that came first, as many as fit; empty when all is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            batch: list[tuple[Ticket, int]] = []
            width = 0
            while self._queue:
                ticket = self._queue[0]
                length = len(ticket.ids[ticket.taken])
                width = max(width, length)
                if batch and width * (len(batch) + 1) > self._limits.max_batch_tokens:
                    break
                batch.append((ticket, ticket.taken))
                ticket.taken += 1
                if ticket.taken == len(ticket.ids):
                    self._queue.popleft()
            if self._queue and self._queue[0].taken:
                # What is left of a long request stands back: others get a batch in between.
                self._queue.rotate(-1)
            return batch

    def _fail(self, tickets: Sequence[Ticket], error: Exception) -> None:
        for ticket in tickets:
            with self._changed:
                if ticket in self._queue:
                    self._queue.remove(ticket)
            with suppress(InvalidStateError):
                ticket.future.set_exception(error)


def _deliver(batch: Sequence[tuple[Ticket, int]], rows: torch.Tensor) -> None:
    for (ticket, _), row in zip(batch, rows, strict=True):
        ticket.rows.append(row)
        if len(ticket.rows) == len(ticket.ids):
            # The client may have gone in the meantime.
            with suppress(InvalidStateError):
                ticket.future.set_result(torch.stack(ticket.rows))
