# SPDX-License-Identifier: Apache-2.0
"""Requests that wait share a call of the model: while one batch runs, the next one gathers.

Nothing waits for company: an idle server runs a lone request at once.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

import torch

from gossamer.errors import KernelError
from gossamer.running.server.limits import Limits
from gossamer.running.server.metrics import Metrics
from gossamer.running.server.worker import Worker, as_failure

RunBatch = Callable[[Sequence[torch.Tensor]], torch.Tensor]


@dataclass(eq=False)
class Ticket:
    """A request: its texts, how many of them have been taken, and the rows found for them."""

    ids: list[torch.Tensor]
    future: "Future[torch.Tensor]" = field(default_factory=Future)
    taken: int = 0
    rows: list[torch.Tensor] = field(default_factory=list)


class Batcher(Worker[Ticket]):
    """Runs the texts of waiting requests together, and finishes them all before it ends.

    Args:
        run: one row per text; called by one thread.
        limits: of the queue and of a batch.
        metrics: gets the sizes of batches.
        turn: held while the model runs, where others use it too.
    """

    def __init__(
        self, run: RunBatch, limits: Limits, metrics: Metrics, turn: AbstractContextManager[object]
    ) -> None:
        super().__init__("gossamer-batches", limits, metrics)
        self._run, self._turn = run, turn

    def submit(self, ids: Sequence[torch.Tensor]) -> Ticket:
        """Queue the texts of a request; QueueFull if too many wait."""
        return self._enqueue(Ticket(list(ids)))

    def drop(self, ticket: Ticket) -> None:
        """Forget a request whose client has gone; what runs already is finished."""
        self._forget(ticket)
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
                failure = as_failure(error, f"{len(ids)} texts")
                for ticket, _ in batch:
                    self._forget(ticket)
                    with suppress(InvalidStateError):
                        ticket.future.set_exception(failure)
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

    def _forget(self, ticket: Ticket) -> None:
        with self._changed, suppress(ValueError):
            self._queue.remove(ticket)


def _deliver(batch: Sequence[tuple[Ticket, int]], rows: torch.Tensor) -> None:
    for (ticket, _), row in zip(batch, rows, strict=True):
        ticket.rows.append(row)
        if len(ticket.rows) == len(ticket.ids):
            # The client may have gone in the meantime.
            with suppress(InvalidStateError):
                ticket.future.set_result(torch.stack(ticket.rows))
