# SPDX-License-Identifier: Apache-2.0
"""In front of every request: who may ask, sizes and times are checked, the outcome is counted.

Served are requests to a name of this server, with its key if it has one. A page of any site can let
its own name point at the loopback and have a browser ask there. The browser still sends that name
as `Host`, so a server on the loopback answers to names of the loopback only.
"""

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Awaitable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gossamer.errors import InputError
from gossamer.running.server.faults import ClientGone, fault
from gossamer.running.server.limits import Limits
from gossamer.running.server.metrics import Metrics

T = TypeVar("T")
_MAX_KEY = 1024
_CLOSE = {"Connection": "close"}
_END = "gossamer.end"
# A page that is the same everywhere; it asks people for the key, and sends it with what it asks.
COMPARE_PAGE = "/compare"
# Whoever watches a server must not need its key.
_OPEN = ("/health", COMPARE_PAGE)


@dataclass(frozen=True)
class Access:
    """What a request must show.

    Attributes:
        hosts: names and addresses that clients may call the server by, besides those of the
            loopback; None = any.
        api_key: what they send as `Authorization: Bearer KEY`; None = nothing.
    """

    hosts: Collection[str] | None = ()
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        key = self.api_key
        if key is not None and not (
            0 < len(key) <= _MAX_KEY and key.isascii() and key.isprintable() and " " not in key
        ):
            # The key itself is not shown: messages end in logs.
            raise InputError(
                f"api_key: expected 1 to {_MAX_KEY} printable ASCII characters without spaces."
            )

    def refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that may not be served."""
        for value in _values(scope, b"host"):
            if not self._is_ours(name := _host_name(value)):
                return fault(
                    421,
                    f"Host: {ascii(name)[:80]} is no name of this server; expected localhost, an"
                    " address of the loopback, or one that the server was told to answer to"
                    " (--allow-host).",
                )
        if self.api_key is not None and scope["path"] not in _OPEN:
            given = [_bearer(value) for value in _values(scope, b"authorization")]
            # Takes as long for a wrong key as for the right one.
            if len(given) != 1 or not hmac.compare_digest(given[0], self.api_key.encode()):
                return fault(
                    401,
                    "Authorization: expected 'Bearer' and the key of this server"
                    f" ({'another one was sent' if given else 'nothing was sent'}).",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        return None

    def _is_ours(self, name: str) -> bool:
        if self.hosts is None or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            if ipaddress.ip_address(name).is_loopback:
                return True
        except ValueError:
            pass
        return name in {host.lower().rstrip(".") for host in self.hosts}


def _host_name(value: bytes) -> str:
    """Without port, brackets and a dot at the end, in small letters."""
    text = value.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    name, _, port = text.rpartition(":")
    return (name if port.isdigit() else text).rstrip(".")


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _values(scope: Scope, wanted: bytes) -> Iterator[bytes]:
    return (value for name, value in scope["headers"] if name.lower() == wanted)


def seconds_left(scope: Scope) -> float:
    """Until a request must have been read and answered, or begun to be; never below 0."""
    return max(0.0, float(scope[_END]) - time.monotonic())


async def while_connected(work: Awaitable[T], request: Request, *, timed: bool = True) -> T:
    """The result of `work`; ClientGone or TimeoutError if that comes first.

    Args:
        work: on the answer to `request`.
        request: what the client sent; its body has been read.
        timed: end with the time of the request; else `work` looks after its time itself.
    """
    seconds = seconds_left(request.scope) if timed else None
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        done, _ = await asyncio.wait(
            {task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if task in done:
            return task.result()
        raise ClientGone if gone in done else TimeoutError
    finally:
        task.cancel()
        # What it says when it ends after all is for nobody.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        gone.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class RequestBody:
    """What a client sends behind the headers; from now on this request has its time.

    Args:
        scope: of the request.
        receive: of the server.
        limits: of size and time.

    Attributes:
        complete: all of it has been read, or the client has gone.
    """

    def __init__(self, scope: Scope, receive: Receive, limits: Limits) -> None:
        self._scope, self._receive, self._limits = scope, receive, limits
        scope[_END] = time.monotonic() + limits.timeout_seconds
        self._received, self.complete = 0, False
        # Such a client sends nothing before it is asked to.
        self._announced = (b"expect", b"100-continue") in scope["headers"]

    @property
    def too_large(self) -> str:
        """What is wrong with a body that is."""
        return f"body: larger than {self._limits.max_body_bytes} bytes. Send fewer texts at once."

    async def next(self) -> Message:
        """Of ASGI: the next part of the body, or the news that the client has gone."""
        if self.complete:
            # Only news of the client's leaving can come, whenever that is.
            return await self._receive()
        self._announced = False
        try:
            message = await asyncio.wait_for(self._receive(), seconds_left(self._scope))
        except asyncio.TimeoutError:  # a class of its own in Python 3.10
            seconds = self._limits.timeout_seconds
            raise HTTPException(408, f"body: incomplete after {seconds:g} s.", _CLOSE) from None
        self._note(message)
        if self._received > self._limits.max_body_bytes:
            raise HTTPException(413, self.too_large, _CLOSE)
        return message

    async def drop_rest(self) -> None:
        """Read what an answer did not wait for.

        A connection that is closed with bytes unread is reset, and the client loses the answer.
        """
        while not self.complete and not self._announced and (left := seconds_left(self._scope)):
            try:
                self._note(await asyncio.wait_for(self._receive(), left))
            except asyncio.TimeoutError:
                return

    def _note(self, message: Message) -> None:
        self._received += len(message.get("body", b""))
        # A client that has gone sends no more, too.
        self.complete = not message.get("more_body", False)


class _NotRead(Exception):
    """A client does not read what it asked for."""


@dataclass(frozen=True)
class Guard:
    """ASGI middleware.

    Args:
        app: what is guarded.
        access: who may ask.
        limits: of a request.
        metrics: gets status and time of every request.
        endpoints: paths that are counted by name; others are counted together.
    """

    app: ASGIApp
    access: Access
    limits: Limits
    metrics: Metrics
    endpoints: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, whole = time.perf_counter(), 0, False
        body = RequestBody(scope, receive, self.limits)

        async def patient(message: Message) -> None:
            # A client that does not read fills the system's buffers, and then waits here.
            try:
                await asyncio.wait_for(send(message), self.limits.timeout_seconds)
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
            refusal = self.access.refusal(scope)
            lengths = (int(v[:20]) for v in _values(scope, b"content-length") if v.isdigit())
            if refusal is None and next(lengths, 0) > self.limits.max_body_bytes:
                refusal = fault(413, body.too_large, headers=_CLOSE)
            await (refusal or self.app)(scope, body.next, watched)
        except _NotRead:
            # Nothing more can be said to this client; uvicorn closes the connection.
            pass
        finally:
            endpoint = scope["path"] if scope["path"] in self.endpoints else "other"
            shown = str(status) if whole else "unfinished"
            seconds = time.perf_counter() - start
            self.metrics.answered(endpoint, shown, seconds, failed=not whole or status >= 400)
