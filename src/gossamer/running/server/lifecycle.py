# SPDX-License-Identifier: Apache-2.0
"""From a port to the last answer: bind, run until told to stop, finish what runs."""

import asyncio
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from gossamer.errors import ResourceError
from gossamer.running.server.limits import Limits

__all__ = [
    "is_loopback",
    "open_socket",
    "run_server",
    "running_server",
    "url_of",
]

_BACKLOG = 1024
# Connections beyond this are refused by uvicorn: each may hold the body of a request.
_CONNECTIONS_PER_PLACE = 2
_SPARE_CONNECTIONS = 64


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; ResourceError if the port is taken or the address is not ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ResourceError(f"{host}: is no address of this machine ({error.strerror}).") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # At once: a second server that starts meanwhile must see that the port is taken.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ResourceError(
            f"{host}:{port}: cannot be listened on ({error.strerror}). Stop the program that uses"
            " it, or choose another one with --port."
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where clients find it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach a server bound to `host`."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(item[4][0] == "::1" or str(item[4][0]).startswith("127.") for item in found)


def run_server(
    app: FastAPI, listener: socket.socket, limits: Limits, ready: Callable[[], None]
) -> None:
    """Answer requests until SIGTERM or SIGINT, then finish those that run.

    SIGTERM returns; SIGINT raises KeyboardInterrupt when all is done. A second signal of either
    kind stops at once.
    """
    server = _server(app, limits, ready)
    # uvicorn raises the signal anew when it is done, for the handler that was there before: then
    # the server has stopped for it, and nothing is left to do.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        server.run(sockets=[listener])
    finally:
        signal.signal(signal.SIGTERM, before)
        listener.close()


@contextmanager
def running_server(app: FastAPI, limits: Limits | None = None) -> Iterator[str]:
    """A server in a thread of this process, on a free port of the loopback; gives its URL."""
    bounds = limits or Limits()
    started = threading.Event()
    listener = open_socket("127.0.0.1", 0)
    server = _server(app, bounds, started.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not started.wait(0.1):
            if not thread.is_alive():
                raise ResourceError("the server ended before it was ready; its log says why.")
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join(bounds.timeout_seconds + 15)
        listener.close()


def _server(app: FastAPI, limits: Limits, ready: Callable[[], None]) -> uvicorn.Server:
    """A server that calls `ready` when it answers."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    class Connection(H11Protocol):
        """Is closed if the headers of a request take longer than the time of all of it.

        uvicorn bounds the time between two requests, and `RequestBody` that of a body. In
        between are the headers: a client that sends them byte by byte, or nothing at all, would
        keep its place.
        """

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
                self._watch = self.loop.call_later(limits.timeout_seconds, self.transport.close)

        def _forget(self) -> None:
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None

    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        limit_concurrency=_CONNECTIONS_PER_PLACE * limits.max_queue + _SPARE_CONNECTIONS,
        timeout_graceful_shutdown=math.ceil(limits.timeout_seconds),
    )
    return Server(config)
