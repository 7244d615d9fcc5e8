# SPDX-License-Identifier: Apache-2.0
"""Connections on which no request comes together are closed.

uvicorn bounds the time between two requests, and `request_body.py` that of a body. In between are
the headers: a client that sends them byte by byte, or nothing at all, would keep its place.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def connection_class(seconds: float) -> type[asyncio.Protocol]:
    """Connections of uvicorn, with `seconds` for the headers of a request."""

    class Connection(H11Protocol):
        _watch: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _watch_headers(self) -> None:
            """Start the clock with the first byte, and stop it when a request has come together."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget()
            elif self._watch is None:
                self._watch = self.loop.call_later(seconds, self.transport.close)

        def _forget(self) -> None:
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None

    return Connection
