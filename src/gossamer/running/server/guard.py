# SPDX-License-Identifier: Apache-2.0
"""In front of every request: access, sizes and times are checked, and the outcome is counted."""

import asyncio
import time
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gossamer.running.server.access import Access
from gossamer.running.server.faults import fault
from gossamer.running.server.limits import Limits
from gossamer.running.server.metrics import Metrics
from gossamer.running.server.request_body import RequestBody, start_clock


class _NotRead(Exception):
    """A client does not read what it asked for."""


class Guard:
    """ASGI middleware.

    Args:
        app: what is guarded.
        access: who may ask.
        limits: of a request.
        metrics: gets status and time of every request.
        endpoints: paths that are counted by name; others are counted together.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        limits: Limits,
        metrics: Metrics,
        endpoints: Collection[str],
    ) -> None:
        self._app, self._access, self._limits, self._metrics = app, access, limits, metrics
        self._endpoints = frozenset(endpoints)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0
        whole = False
        start_clock(scope, self._limits)
        body = RequestBody(scope, receive, self._limits)

        async def patient(message: Message) -> None:
            # A client that does not read fills the system's buffers, and then waits here.
            try:
                await asyncio.wait_for(send(message), self._limits.timeout_seconds)
            except asyncio.TimeoutError:  # a class of its own in Python 3.10
                raise _NotRead from None

        async def watched(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
            is_last = message["type"] == "http.response.body" and not message.get("more_body")
            if is_last and not body.complete:
                # All of the answer is out before the rest of the request is waited for.
                await patient({**message, "more_body": True})
                await body.drop_rest()
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await patient(message)
            whole = whole or is_last

        try:
            await self._answer(scope, body, watched)
        except _NotRead:
            # Nothing more can be said to this client; uvicorn closes the connection.
            pass
        finally:
            endpoint = scope["path"] if scope["path"] in self._endpoints else "other"
            shown = str(status) if whole else "unfinished"
            seconds = time.perf_counter() - start
            self._metrics.answered(endpoint, shown, seconds, failed=not whole or status >= 400)

    async def _answer(self, scope: Scope, body: RequestBody, send: Send) -> None:
        refusal = self._access.refusal(scope)
        if refusal is None and _content_length(scope) > self._limits.max_body_bytes:
            refusal = fault(413, body.too_large, headers={"Connection": "close"})
        await (refusal or self._app)(scope, body.next, send)


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
