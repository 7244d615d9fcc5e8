# SPDX-License-Identifier: Apache-2.0
"""Hosts joined by a process that holds frames back: rates with delay and jitter.

Many kernels lack netem, so each host gets a TAP interface whose other end is this relay. What a
host sends is limited in the kernel, because a relay that takes frames at once hides the queue from
TCP; what it receives is limited and delayed here. Frames of up to 64 KiB keep the cost at about a
second of CPU time per GB. Also a script without the package: `python cluster_relay.py SETTINGS`.
"""

import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import sys
import time
from typing import Any

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_TAP, _NO_PACKET_INFO, _VNET_HEADER = 0x0002, 0x1000, 0x4000
_CHECKSUM_AND_SEGMENTS = 0x01 | 0x02 | 0x04
_VNET_BYTES = 10  # virtio's header before each frame
_QUEUE_BYTES = 4 << 20


def open_tap() -> int:
    """A descriptor of a new interface eth0 in the namespace of the calling thread."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(
        tap, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _TAP | _NO_PACKET_INFO | _VNET_HEADER)
    )
    fcntl.ioctl(tap, _TUNSETOFFLOAD, _CHECKSUM_AND_SEGMENTS)
    return tap


def mac_of(host: int) -> bytes:
    """The hardware address of a host: how the relay knows where a frame goes."""
    return bytes([2, 0x67, 0, 0, host >> 8, host & 0xFF])


class _Relay:
    def __init__(self, taps: list[int], links: list[dict[str, Any]]) -> None:
        self._taps, self._links = taps, links
        self._host_of = {mac_of(host): host for host in range(len(taps))}
        self._side = [0] * len(taps)  # hosts on different sides do not reach each other
        self._free_at = [0.0] * len(taps)  # when the downlink has sent all it was given
        self._last_at: dict[tuple[int, int], float] = {}
        self._queue: list[tuple[float, int, int, bytes]] = []
        self._count = itertools.count()
        self._random = random.Random(0)  # noqa: S311  (jitter, not a secret)

    def command(self, line: str) -> None:
        order = json.loads(line)
        if "apart" in order:
            self._side = [int(host in order["apart"]) for host in range(len(self._taps))]
        else:
            self._links[order["host"]]["rate_mbit"] = order["rate_mbit"]

    def receive(self, source: int) -> None:
        """Take what a host sent, a few frames at a time so that no other host starves."""
        for _ in range(32):
            try:
                frame = os.read(self._taps[source], 1 << 17)
            except BlockingIOError:
                return
            target = self._host_of.get(frame[_VNET_BYTES : _VNET_BYTES + 6])
            everyone = [host for host in range(len(self._taps)) if host != source]
            for host in everyone if target is None else [target]:
                if self._side[host] == self._side[source]:
                    self._hold(source, host, frame)

    def _hold(self, source: int, target: int, frame: bytes) -> None:
        sent_at, rate_mbit = time.monotonic(), self._links[target]["rate_mbit"]
        if rate_mbit is not None:
            seconds_per_byte = 8e-6 / rate_mbit
            if self._free_at[target] - sent_at > _QUEUE_BYTES * seconds_per_byte:
                return  # the queue is full: the frame is lost, as at a real switch
            sent_at = max(sent_at, self._free_at[target]) + len(frame) * seconds_per_byte
            self._free_at[target] = sent_at
        wait_ms = sum(
            self._links[host]["delay_ms"] / 2
            + self._random.random() * self._links[host]["jitter_ms"] / 2
            for host in (source, target)
        )
        # In order, as on a wire: a frame is never overtaken by a later one of the same sender.
        due = max(self._last_at.get((source, target), 0.0), sent_at + wait_ms / 1e3)
        self._last_at[source, target] = due
        heapq.heappush(self._queue, (due, next(self._count), target, frame))

    def deliver(self) -> float | None:
        """Hand over the frames that are due; milliseconds until the next one."""
        while self._queue:
            wait = self._queue[0][0] - time.monotonic()
            if wait > 0:
                return wait * 1e3
            _, _, target, frame = heapq.heappop(self._queue)
            try:
                os.write(self._taps[target], frame)
            except OSError:
                continue  # the host's own queue is full, or its interface is down
        return None


def serve(taps: list[int], links: list[dict[str, Any]], orders: int) -> None:
    """Relay until `orders`, a pipe of JSON lines, is closed by its writer."""
    relay, poll = _Relay(taps, links), select.poll()
    host_of = {tap: host for host, tap in enumerate(taps)}
    for descriptor in (*taps, orders):
        poll.register(descriptor, select.POLLIN)
    print("ready", flush=True)  # noqa: T201  (the word its maker waits for)
    while True:
        wait_ms = relay.deliver()
        # poll() rounds up to whole milliseconds; below one it is asked again at once.
        for descriptor, _ in poll.poll(None if wait_ms is None else int(wait_ms)):
            if descriptor != orders:
                relay.receive(host_of[descriptor])
                continue
            lines = os.read(orders, 65536).decode()
            if not lines:
                return
            for line in lines.splitlines():
                relay.command(line)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    serve(settings["taps"], settings["links"], sys.stdin.fileno())
