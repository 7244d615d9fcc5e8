# SPDX-License-Identifier: Apache-2.0
"""One request: a body so large and no larger, and a time that the first byte sets."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

from gossamer.running.server.faults import ClientGone
from gossamer.running.server.limits import Limits

T = TypeVar("T")
_CLOSE = {"Connection": "close"}
_END = "gossamer.end"


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
