# SPDX-License-Identifier: Apache-2.0
"""What joins the hosts: a bridge of the kernel, or a relay that also holds frames back.

A bridge has limited rates, no delay and next to no CPU time. The relay is `cluster_relay.py`,
started and given orders here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gossamer.errors import ResourceError
from gossamer.testing import cluster_relay
from gossamer.testing.cluster_network import (
    Link,
    inside,
    new_namespace,
    set_up_loopback,
    shape,
    tool,
)


def give_address(namespace: int, address: str) -> None:
    """Bring eth0 up with an address, and TCP that fills a shaped link without guessing its rate."""
    network = address.rpartition(".")[0] + ".0/24"
    tool(namespace, f"ip addr add {address}/24 dev eth0")
    tool(namespace, "ip link set eth0 up")
    try:  # a kernel may have no cubic, or have it as the default
        tool(namespace, f"ip route replace {network} dev eth0 src {address} congctl cubic")
    except ResourceError:
        return


class Bridge:
    """A switch namespace with one port per host; a partition is a second bridge."""

    def __init__(
        self, hosts: Sequence[int], addresses: Sequence[str], links: Sequence[Link]
    ) -> None:
        self._hosts = list(hosts)
        self._switch = new_namespace()
        set_up_loopback(self._switch)
        for bridge in ("joined", "apart"):
            tool(self._switch, f"ip link add {bridge} type bridge stp_state 0 forward_delay 0")
            tool(self._switch, f"ip link set {bridge} up")
        for index, (host, address) in enumerate(zip(hosts, addresses, strict=True)):
            set_up_loopback(host)
            pair = f"eth0 netns /proc/self/fd/{host} type veth peer name port{index}"
            tool(self._switch, f"ip link add {pair}", keep=(host,))
            tool(self._switch, f"ip link set port{index} master joined")
            tool(self._switch, f"ip link set port{index} up")
            give_address(host, address)
            self.set_rate(index, links[index].rate_mbit)

    def set_rate(self, host: int, rate_mbit: float | None) -> None:
        """Limit both directions of a link: the host shapes what it sends, the port the rest."""
        shape(self._hosts[host], "eth0", rate_mbit)
        shape(self._switch, f"port{host}", rate_mbit)

    def partition(self, apart: Sequence[int]) -> None:
        """Hosts in `apart` reach each other and nobody else."""
        for index in range(len(self._hosts)):
            bridge = "apart" if index in apart else "joined"
            tool(self._switch, f"ip link set port{index} master {bridge}")

    def close(self) -> None:
        """Give the switch back to the kernel."""
        os.close(self._switch)


class DelayedSwitch:
    """Does what `Bridge` does, with delay and jitter."""

    def __init__(
        self, hosts: Sequence[int], addresses: Sequence[str], links: Sequence[Link]
    ) -> None:
        self._hosts = list(hosts)
        taps: list[int] = []
        try:
            for index, host in enumerate(hosts):
                set_up_loopback(host)
                taps.append(inside(host, cluster_relay.open_tap))
                mac = cluster_relay.mac_of(index).hex(":")
                tool(host, f"ip link set eth0 address {mac} txqueuelen 2000")
                give_address(host, addresses[index])
                shape(host, "eth0", links[index].rate_mbit)
            settings = {"taps": taps, "links": [asdict(link) for link in links]}
            self._relay = subprocess.Popen(  # noqa: S603  (own script)
                [sys.executable, "-I", "-S", cluster_relay.__file__, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=taps,
                text=True,
            )
        finally:
            for tap in taps:
                os.close(tap)  # the relay has its own
        assert self._relay.stdout is not None  # noqa: S101  (for the type checker: it is a pipe)
        if self._relay.stdout.readline() != "ready\n":
            self.close()
            raise ResourceError("cluster: the relay of delayed links did not start.")

    def _order(self, **order: Any) -> None:
        assert self._relay.stdin is not None  # noqa: S101  (as above)
        self._relay.stdin.write(json.dumps(order) + "\n")
        self._relay.stdin.flush()

    def set_rate(self, host: int, rate_mbit: float | None) -> None:
        """Limit both directions of a link."""
        shape(self._hosts[host], "eth0", rate_mbit)
        self._order(host=host, rate_mbit=rate_mbit)

    def partition(self, apart: Sequence[int]) -> None:
        """Hosts in `apart` reach each other and nobody else."""
        self._order(apart=list(apart))

    def close(self) -> None:
        """End the relay; its interfaces go with it."""
        self._relay.kill()
        self._relay.communicate()
