# SPDX-License-Identifier: Apache-2.0
"""In front of every request: sizes and times are bounded, and the outcome is counted."""

import asyncio
import time
from collections.abc import Collection

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gossamer.run.server.faults import fault
from gossamer.run.server.limits import Limits
from gossamer.run.server.metrics import Metrics


class _NotRead(Exception):
    """A client does not read what it asked for."""


class Guard:
    """ASGI middleware.

    Args:
        app: what is guarded.
        limits: of a request.
        metrics: gets status and time of every request.
        endpoints: paths that are counted by name; others are counted together.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, metrics: Metrics, endpoints: Collection[str]
    ) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._endpoints = frozenset(endpoints)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0
        whole = False

        async def watched(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
            # A client that does not read fills the system's buffers, and then waits here.
            try:
                await asyncio.wait_for(send(message), self._limits.timeout_seconds)
            except asyncio.TimeoutError:  # a class of its own in Python 3.10
                raise _NotRead from None
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                whole = True

        try:
            if _content_length(scope) > self._limits.max_body_bytes:
                await fault(413, self._too_large, headers={"Connection": "close"})(
                    scope, receive, watched
                )
            else:
                await self._app(scope, self._bounded(receive), watched)
        except _NotRead:
            # Nothing more can be said to this client; uvicorn closes the connection.
            pass
        finally:
            endpoint = scope["path"] if scope["path"] in self._endpoints else "other"
            shown = str(status) if whole else "unfinished"
            seconds = time.perf_counter() - start
            self._metrics.answered(endpoint, shown, seconds, failed=not whole or status >= 400)

    @property
    def _too_large(self) -> str:
        return f"body: larger than {self._limits.max_body_bytes} bytes. Send fewer texts at once."

    def _bounded(self, receive: Receive) -> Receive:
        received, complete = 0, False

        async def bounded() -> Message:
            nonlocal received, complete
            if complete:
                # Only news of the client's leaving can come, whenever that is.
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self._limits.timeout_seconds)
            except asyncio.TimeoutError:
                seconds = self._limits.timeout_seconds
                close = {"Connection": "close"}
                raise HTTPException(408, f"body: incomplete after {seconds:g} s.", close) from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > self._limits.max_body_bytes:
                raise HTTPException(413, self._too_large, {"Connection": "close"})
            return message

        return bounded


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
