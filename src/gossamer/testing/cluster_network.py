# SPDX-License-Identifier: Apache-2.0
"""The network of a cluster in a box: namespaces, and links with limits and counters.

Namespaces have no names: each lives as long as a descriptor or a process holds it.

Nothing is written to /run/netns, so there is nothing to sweep after a crash: the kernel closes the
descriptors of a killed process and takes the namespaces, their interfaces and queues away.
"""

import ctypes
import json
import math
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gossamer.errors import InputError, ResourceError

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
Result = TypeVar("Result")
# Ethernet, IPv4 and TCP with time stamps. A segment of up to 64 KiB has them once, because virtual
# interfaces hand it over unsplit.
_HEADER_BYTES = 66
# A bucket below one 64 KiB segment makes the kernel split every frame, at a third of the rate.
_BURST, _QUEUE = "256kb", "4mb"


def new_namespace() -> int:
    """A descriptor of a new, empty network namespace."""

    def make() -> int:
        if _libc.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare of the network")
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _in_thread(make)


def inside(namespace: int, function: Callable[[], Result]) -> Result:
    """What `function` returns when its thread, and what it starts, sits in `namespace`."""

    def enter() -> Result:
        if _libc.setns(namespace, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        return function()

    return _in_thread(enter)


def tool(namespace: int, command: str, *, keep: tuple[int, ...] = ()) -> str:
    """The output of `ip ...` or `tc ...` inside; ResourceError with its message if it fails.

    Args:
        namespace: where the command runs.
        command: words separated by spaces.
        keep: descriptors it may use, as /proc/self/fd/N.
    """
    # The search path of an ordinary user often lacks sbin, where these tools are.
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    done = inside(
        namespace,
        lambda: subprocess.run(  # noqa: S603  (own words, no shell)
            command.split(),
            capture_output=True,
            text=True,
            pass_fds=keep,
            env={"PATH": path},
            check=False,
        ),
    )
    if done.returncode:
        raise ResourceError(f"{command!r} failed: {done.stderr.strip() or done.returncode}.")
    return done.stdout


def set_up_loopback(namespace: int) -> None:
    """The loopback interface up, and no IPv6: gloo would take a link-local address."""

    def disable_ipv6() -> None:
        setting = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
        if setting.exists():
            setting.write_text("1")

    inside(namespace, disable_ipv6)
    tool(namespace, "ip link set lo up")


def _in_thread(function: Callable[[], Result]) -> Result:
    """Run in a thread of its own: a namespace is entered by one thread, not by the process."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@dataclass(frozen=True)
class Link:
    """The cable between a host and the switch, the same in both directions.

    Attributes:
        rate_mbit: megabits per second; None is as fast as the machine.
        delay_ms: one way, from sender to receiver.
        jitter_ms: added to the delay, uniform between 0 and this; frames stay in order.
    """

    rate_mbit: float | None = None
    delay_ms: float = 0.0
    jitter_ms: float = 0.0

    def __post_init__(self) -> None:
        for name, bound in {"rate_mbit": "> 0", "delay_ms": ">= 0", "jitter_ms": ">= 0"}.items():
            value = getattr(self, name)
            if name == "rate_mbit" and value is None:
                continue
            if not 0 <= value < math.inf or (value == 0 and bound == "> 0"):
                raise InputError(f"Link: {name} must be finite and {bound}, got {value}.")

    @property
    def waits(self) -> bool:
        """Whether frames are held back."""
        return self.delay_ms > 0 or self.jitter_ms > 0


@dataclass(frozen=True)
class Traffic:
    """Payload bytes of TCP that a host sent and received since the cluster was made."""

    sent_bytes: int
    received_bytes: int

    def __sub__(self, before: "Traffic") -> "Traffic":
        return Traffic(
            self.sent_bytes - before.sent_bytes, self.received_bytes - before.received_bytes
        )


def read_traffic(namespace: int) -> Traffic:
    """The counters of the host in `namespace`; acknowledgements count as nothing."""
    (shown,) = json.loads(tool(namespace, "ip -json -statistics link show dev eth0"))
    ways = (shown["stats64"][way] for way in ("tx", "rx"))
    return Traffic(*(way["bytes"] - _HEADER_BYTES * way["packets"] for way in ways))


def shape(namespace: int, device: str, rate_mbit: float | None) -> None:
    """Limit what leaves `device` to a rate, or lift the limit."""
    if rate_mbit is not None:
        limits = f"rate {round(rate_mbit * 1e3)}kbit burst {_BURST} limit {_QUEUE}"
        tool(namespace, f"tc qdisc replace dev {device} root tbf {limits}")
    elif "tbf" in tool(namespace, f"tc qdisc show dev {device}"):
        tool(namespace, f"tc qdisc del dev {device} root")
