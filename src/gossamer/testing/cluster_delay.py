# SPDX-License-Identifier: Apache-2.0
"""The relay of `cluster_relay.py`, started and given orders."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gossamer.errors import ResourceError
from gossamer.testing import cluster_relay
from gossamer.testing.cluster_bridge import give_address
from gossamer.testing.cluster_links import Link, shape
from gossamer.testing.cluster_namespace import inside, set_up_loopback, tool


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
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(Path(cluster_relay.__file__)),
                    json.dumps(settings),
                ],
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
