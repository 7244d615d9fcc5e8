# SPDX-License-Identifier: Apache-2.0
"""Texts that are generated at the same time: one thread, one token of each in turn.

A text whose client reads slowly waits while the others go on; its tokens fill a bounded buffer.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

from gossamer.running.decoder import GenerationOptions, TokenGenerator
from gossamer.running.server.limits import Limits
from gossamer.running.server.metrics import Metrics
from gossamer.running.server.worker import Worker, as_failure


class TokenStream:
    """Tokens of one text on their way from the worker to a client.

    Everything is guarded by the worker's lock, which is never held while the model runs.
    """

    def __init__(self, tokens: Iterator[int], changed: threading.Condition) -> None:
        self.tokens = tokens
        self.buffer: deque[int] = deque()
        self.full_since: float | None = None
        self.ended = False
        self.dropped = False
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
        return self._enqueue(TokenStream(self._generator.generate(ids, options), self._changed))

    def _work(self) -> None:
        while (ready := self._ready()) is not None:
            for stream in ready:
                self._advance(stream)

    def _ready(self) -> list[TokenStream] | None:
        """Texts that can get a token; waits for one. None when the server closes."""
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
            return None

    def _is_over(self, stream: TokenStream) -> bool:
        if len(stream.buffer) >= self._limits.stream_tokens:
            stream.full_since = stream.full_since or time.monotonic()
            stream.dropped |= time.monotonic() - stream.full_since > self._limits.timeout_seconds
        if not (stream.ended or stream.dropped or stream.error):
            return False
        # Frees keys and values now, not when the client's side is collected.
        getattr(stream.tokens, "close", lambda: None)()
        stream.ended = True
        stream.tell()
        return True

    def _advance(self, stream: TokenStream) -> None:
        token, error = None, None
        try:
            token = next(stream.tokens, None)
        except Exception as caught:
            error = as_failure(caught, "a text")
        with self._changed:
            if error is not None:
                stream.error = error
            elif token is None:
                stream.ended = True
            else:
                self._metrics.generated_tokens.inc()
                stream.buffer.append(token)
            stream.tell()
