# SPDX-License-Identifier: Apache-2.0
"""Who may ask: requests to a name of this server, with its key if it has one.

A page of any site can let its own name point at the loopback and have a browser ask there. The
browser still sends that name as `Host`, so a server on the loopback answers to names of the
loopback only.
"""

import hmac
import ipaddress
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from starlette.responses import Response
from starlette.types import Scope

from gossamer.errors import InputError
from gossamer.running.server.faults import fault

# Whoever watches a server must not need its key.
_OPEN_PATHS = ("/health",)
_MAX_KEY = 1024


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
        if self.api_key is not None and scope["path"] not in _OPEN_PATHS:
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
        if self.hosts is None or _is_loopback_name(name):
            return True
        return name in {host.lower().rstrip(".") for host in self.hosts}


def _is_loopback_name(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


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
