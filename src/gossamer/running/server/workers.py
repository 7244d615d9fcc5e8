# SPDX-License-Identifier: Apache-2.0
"""All who call the model: a bounded queue, and one thread that empties it.

A `Batcher` runs the texts of requests that wait in one call: while one batch runs, the next one
gathers. Nothing waits for company: an idle server runs a lone request at once. A `TurnTaker`
generates several texts at the same time, one token or one part of a prompt of each in turn. A text
whose client reads slowly waits while the others go on; its tokens fill a bounded buffer.
"""

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from gossamer.errors import GossamerError, KernelError
from gossamer.running.decoder import GenerationOptions, TokenGenerator
from gossamer.running.server.limits import Limits, QueueFull
from gossamer.running.server.metrics import Metrics

_log = logging.getLogger(__name__)
Item = TypeVar("Item")
# Token ids of texts, or rows of a click log: anything with a length -> one row of numbers each.
RunBatch = Callable[[Sequence[Any]], torch.Tensor]


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

    def close(self) -> None:
        """Let the worker finish, and end its thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(10.0)

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


def _as_failure(error: Exception, what: str) -> GossamerError:
    """A failed call of the model as a sentence for clients; the log gets the traceback.

    Call it where `error` was caught.
    """
    if isinstance(error, GossamerError):
        return error
    _log.error("the model failed on %s", what, exc_info=error)
    return KernelError(f"the model failed on {what} ({type(error).__name__}: {str(error)[:200]}).")


@dataclass(eq=False)
class Ticket:
    """A request: its texts, how many of them have been taken, and the rows found for them.

    `seconds` are those of the calls of the model that it had a part in.
    """

    ids: Sequence[Any]
    future: "Future[torch.Tensor]" = field(default_factory=Future)
    taken: int = 0
    rows: list[torch.Tensor] = field(default_factory=list)
    seconds: float = 0.0


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

    def submit(self, ids: Sequence[Any]) -> Ticket:
        """Queue the texts of a request; QueueFull if too many wait."""
        return self._enqueue(Ticket(ids))

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
                    start = time.perf_counter()
                    rows = self._run(ids)
                    seconds = time.perf_counter() - start
                if not bool(torch.isfinite(rows).all()):
                    raise KernelError("the model gives numbers that are NaN or infinite.")
            except Exception as error:
                failure = _as_failure(error, f"{len(ids)} texts")
                for ticket, _ in batch:
                    self._forget(ticket)
                    with suppress(InvalidStateError):
                        ticket.future.set_exception(failure)
                continue
            for ticket in {id(ticket): ticket for ticket, _ in batch}.values():
                ticket.seconds += seconds
            for (ticket, _), row in zip(batch, rows, strict=True):
                ticket.rows.append(row)
                if len(ticket.rows) == len(ticket.ids):
                    # The client may have gone in the meantime.
                    with suppress(InvalidStateError):
                        ticket.future.set_result(torch.stack(ticket.rows))

    def _take(self) -> list[tuple[Ticket, int]]:
        """Texts of the requests that came first, as many as fit; empty when all is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            batch: list[tuple[Ticket, int]] = []
            width = 0
            while self._queue:
                ticket = self._queue[0]
                width = max(width, len(ticket.ids[ticket.taken]))
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


class TokenStream:
    """Tokens of one text on their way from the worker to a client.

    Everything is guarded by the worker's lock, which is never held while the model runs.
    """

    def __init__(self, tokens: Iterator[int | None], changed: threading.Condition) -> None:
        self.tokens = tokens
        self.buffer: deque[int] = deque()
        self.full_since: float | None = None
        self.ended = self.dropped = False
        self.error: Exception | None = None
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    async def next(self, timeout_seconds: float) -> int | None:
        """The next token, None at the end; raises what the model raised, or TimeoutError."""
        while True:
            with self._changed:
                if self.buffer:
                    self.full_since = None
                    self._changed.notify()
                    return self.buffer.popleft()
                if self.error is not None:
                    raise self.error
                if self.ended:
                    return None
                self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), timeout_seconds)
            except asyncio.TimeoutError as error:  # a class of its own in Python 3.10
                raise TimeoutError from error

    def drop(self) -> None:
        """The client has enough or has gone."""
        with self._changed:
            self.dropped = True
            self._changed.notify()

    def tell(self) -> None:
        """Wake the client's side."""
        # A loop that is closed has no client to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._news.set)


class TurnTaker(Worker[TokenStream]):
    """Continues some of the waiting prompts in turns; drops what is left when it ends.

    Args:
        generator: the engine; used by one thread.
        limits: of the queue, of texts at a time, of a buffer.
        metrics: gets the number of tokens.
    """

    def __init__(self, generator: TokenGenerator, limits: Limits, metrics: Metrics) -> None:
        super().__init__("gossamer-turns", limits, metrics)
        self._generator = generator
        self._active: list[TokenStream] = []

    def submit(self, ids: Sequence[int], options: GenerationOptions) -> TokenStream:
        """Queue a prompt, from the event loop; QueueFull if too many wait."""
        return self._enqueue(TokenStream(self._generator.turns(ids, options), self._changed))

    def _work(self) -> None:
        while ready := self._ready():
            for stream in ready:
                self._advance(stream)

    def _ready(self) -> list[TokenStream]:
        """Texts that can get a token; waits for one. None of them when the server closes."""
        with self._changed:
            while not self._closed:
                self._queue = deque(s for s in self._queue if not s.dropped)
                self._active = [s for s in self._active if not self._is_over(s)]
                while self._queue and len(self._active) < self._limits.max_streams:
                    self._active.append(self._queue.popleft())
                ready = [s for s in self._active if len(s.buffer) < self._limits.stream_tokens]
                if ready:
                    return ready
                # Those that are active read too slowly: look again, to drop them in the end.
                self._changed.wait(1.0 if self._active else None)
            return []

    def _is_over(self, stream: TokenStream) -> bool:
        if len(stream.buffer) >= self._limits.stream_tokens:
            stream.full_since = stream.full_since or time.monotonic()
            stream.dropped |= time.monotonic() - stream.full_since > self._limits.timeout_seconds
        if not (stream.ended or stream.dropped):
            return False
        # Frees keys and values now, not when the client's side is collected.
        getattr(stream.tokens, "close", lambda: None)()
        stream.ended = True
        stream.tell()
        return True

    def _advance(self, stream: TokenStream) -> None:
        token, error, is_over = None, None, False
        try:
            token = next(stream.tokens)
        except StopIteration:
            is_over = True
        except Exception as caught:
            error, is_over = _as_failure(caught, "a text"), True
        if token is None and not is_over:  # a part of the prompt
            return
        with self._changed:
            stream.error, stream.ended = error, is_over
            if token is not None:
                self._metrics.generated_tokens.inc()
                stream.buffer.append(token)
            stream.tell()
