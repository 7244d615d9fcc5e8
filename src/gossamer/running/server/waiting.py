# SPDX-License-Identifier: Apache-2.0
"""Waiting for work while its client is still there."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import Request

from gossamer.running.server.faults import ClientGone

T = TypeVar("T")


async def while_connected(work: Awaitable[T], request: Request, timeout_seconds: float | None) -> T:
    """The result of `work`; ClientGone or TimeoutError if that comes first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        done, _ = await asyncio.wait(
            {task, gone}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED
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
