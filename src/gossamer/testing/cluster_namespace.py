# SPDX-License-Identifier: Apache-2.0
"""Network namespaces without names: each lives as long as a descriptor or a process holds it.

Nothing is written to /run/netns, so there is nothing to sweep after a crash: the kernel closes the
descriptors of a killed process and takes the namespaces, their interfaces and queues away.
"""

import ctypes
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gossamer.errors import ResourceError

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
Result = TypeVar("Result")


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
