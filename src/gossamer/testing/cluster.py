# SPDX-License-Identifier: Apache-2.0
"""A cluster in a box: hosts with addresses of their own and limited links, on one machine.

    with Cluster(4, Link(rate_mbit=200)) as cluster:
        for ended in cluster.run([sys.executable, "training.py"], timeout_seconds=300):
            print(ended.exit_code, ended.output)
        print([link.sent_bytes for link in cluster.traffic()])

Hosts are network namespaces, which needs root on Linux; without it they are processes on the
loopback address, where commands run as well but links have neither limits nor counters.
"""

import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from gossamer.errors import InputError, ResourceError
from gossamer.testing.cluster_network import Link, Traffic, new_namespace, read_traffic
from gossamer.testing.cluster_process import Finished, HostProcess
from gossamer.testing.cluster_switch import Bridge, DelayedSwitch

Isolation = Literal["auto", "namespaces", "loopback"]
MAX_HOSTS = 200
UNLIMITED = Link()
_FIRST_PORT = 29500


@functools.cache
def why_no_namespaces(delayed: bool = False) -> str | None:
    """Why hosts cannot be isolated here; None if they can.

    Args:
        delayed: ask for links with delay or jitter.
    """
    if sys.platform != "linux":
        return f"network namespaces need Linux, this is {sys.platform}"
    link = Link(100, delay_ms=1 if delayed else 0)
    try:
        Cluster(1, link, isolation="namespaces").close()
    except (OSError, ResourceError) as fault:
        return f"network namespaces cannot be used here: {fault}"
    return None


class Cluster:
    """`num_hosts` hosts on a switch; a context manager, gone at its end or its maker's.

    Args:
        num_hosts: hosts, numbered from 0.
        link: of every host, or one per host.
        isolation: "namespaces", "loopback", or "auto": namespaces where they are permitted.
    """

    def __init__(
        self,
        num_hosts: int,
        link: Link | Sequence[Link] = UNLIMITED,
        *,
        isolation: Isolation = "auto",
    ) -> None:
        if not 1 <= num_hosts <= MAX_HOSTS:
            raise InputError(f"Cluster: num_hosts must be in 1..{MAX_HOSTS}, got {num_hosts}.")
        links = [link] * num_hosts if isinstance(link, Link) else list(link)
        if len(links) != num_hosts:
            raise InputError(f"Cluster: {num_hosts} hosts need as many links, got {len(links)}.")
        delayed = any(link.waits for link in links)
        if isolation == "auto":
            isolation = "loopback" if why_no_namespaces(delayed) else "namespaces"
        self.num_hosts = num_hosts
        self.isolated = isolation == "namespaces"
        self.addresses = ["127.0.0.1"] * num_hosts
        self._namespaces: list[int] = []
        self._processes: list[list[HostProcess]] = [[] for _ in links]
        self._port = _FIRST_PORT
        self._fabric: Bridge | DelayedSwitch | None = None
        try:
            if self.isolated:
                self.addresses = [f"10.77.0.{host + 1}" for host in range(num_hosts)]
                # One by one: those that were made are closed if another cannot be.
                for _ in links:
                    self._namespaces.append(new_namespace())
                switch = DelayedSwitch if delayed else Bridge
                self._fabric = switch(self._namespaces, self.addresses, links)
        except BaseException:
            self.close()
            raise

    def start(
        self,
        host: int,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> HostProcess:
        """Start a command on a host, with this process's environment and `environment`."""
        process = HostProcess(
            command,
            {
                **os.environ,
                # What gloo must know, and one thread per rank: hosts share the machine's cores.
                "GLOO_SOCKET_IFNAME": "eth0" if self.isolated else "lo",
                "OMP_NUM_THREADS": "1",
                **(environment or {}),
            },
            namespace=self._namespaces[host] if self.isolated else None,
            folder=folder,
        )
        self._processes[host].append(process)
        return process

    def start_ranks(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> list[HostProcess]:
        """Start the command once per host, as ranks of one process group (`env://`)."""
        # What `init_process_group()` reads, for one rank per host.
        shared = {
            "MASTER_ADDR": self.addresses[0],
            "MASTER_PORT": str(self.free_port()),
            "WORLD_SIZE": str(self.num_hosts),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
        }
        return [
            self.start(
                host,
                command,
                environment={**shared, "RANK": str(host), **(environment or {})},
                folder=folder,
            )
            for host in range(self.num_hosts)
        ]

    def run(
        self,
        command: Sequence[str],
        *,
        timeout_seconds: float,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> list[Finished]:
        """Run the command once per host, as ranks of one process group, and wait for all."""
        started = self.start_ranks(command, environment=environment, folder=folder)
        end = time.monotonic() + timeout_seconds
        return [process.result(max(0.0, end - time.monotonic())) for process in started]

    def torchrun(self, host: int, port: int, arguments: Sequence[str]) -> list[str]:
        """The torchrun command of a host for one rank on each; `arguments` are options and script.

        `is_host` is needed: no launcher recognises the address of a namespace as its own.
        """
        return [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", str(self.num_hosts), "--nproc-per-node", "1"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.addresses[0]}:{port}"),
            *("--rdzv-id", f"box-{os.getpid()}-{port}", "--local-addr", self.addresses[host]),
            *("--rdzv-conf", f"is_host={int(host == 0)}"),
            *arguments,
        ]

    def free_port(self) -> int:
        """A port of the first host that nobody uses."""
        if self.isolated:
            self._port += 1
            return self._port
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def traffic(self) -> list[Traffic]:
        """Payload bytes that each host's link has carried so far."""
        self._need_isolation("traffic counters")
        return [read_traffic(namespace) for namespace in self._namespaces]

    def set_rate(self, rate_mbit: float | None, hosts: Sequence[int] | None = None) -> None:
        """Change the rate of all links, or of some; None lifts the limit."""
        Link(rate_mbit)
        fabric = self._need_isolation("link rates")
        for host in range(self.num_hosts) if hosts is None else hosts:
            fabric.set_rate(host, rate_mbit)

    def partition(self, apart: Sequence[int]) -> None:
        """Cut the hosts in `apart` off from the others; frames between the two sides are lost."""
        self._need_isolation("partitions").partition(apart)

    def heal(self) -> None:
        """Join all hosts again."""
        self._need_isolation("partitions").partition(())

    def stop(self, host: int) -> None:
        """Freeze everything that runs on a host: its connections stay open and silent."""
        for process in self._processes[host]:
            process.signal(signal.SIGSTOP)

    def resume(self, host: int) -> None:
        """Let a stopped host go on."""
        for process in self._processes[host]:
            process.signal(signal.SIGCONT)

    def kill(self, host: int) -> None:
        """End everything that runs on a host, as SIGKILL does; the others are not told."""
        for process in self._processes[host]:
            process.kill()

    def close(self) -> None:
        """End all commands, take the network away. Twice is once."""
        for processes in self._processes:
            for process in processes:
                process.close()
            processes.clear()
        if self._fabric is not None:
            self._fabric.close()
            self._fabric = None
        while self._namespaces:
            os.close(self._namespaces.pop())

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _need_isolation(self, what: str) -> Bridge | DelayedSwitch:
        if self._fabric is None:
            reason = why_no_namespaces() or "this one was made with isolation='loopback', or closed"
            raise ResourceError(f"Cluster: {what} need hosts with their own network; {reason}.")
        return self._fabric
