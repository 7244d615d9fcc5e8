# SPDX-License-Identifier: Apache-2.0
"""Run functions on several processes of this machine: many cases in one set of processes."""

import itertools
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
import torch.multiprocessing as mp
from warm_processes import Surroundings, fork_server

SECONDS = 600


# Below the ports that the system gives to connections by itself: none of those can take one of ours
# between this look and its use. Workers of a test run have ranges of their own.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = itertools.count(10_000 + 2_000 * (_WORKER % 10))


def free_port() -> int:
    """A port that nobody uses now, and that is not given twice."""
    for port in _PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@contextmanager
def started(function: Callable, arguments: tuple, world: int) -> Iterator[mp.ProcessContext]:
    """`function(rank, *arguments)` in `world` processes; none is left behind."""
    fork_server()
    given = (Surroundings.here(), function, arguments)
    context = mp.start_processes(_be, given, nprocs=world, join=False, start_method="forkserver")
    try:
        yield context
    finally:
        for process in context.processes:
            process.kill()
            process.join()


def _be(rank: int, given: Surroundings, function: Callable, arguments: tuple) -> None:
    given.enter()
    function(rank, *arguments)


def join(context: mp.ProcessContext) -> None:
    """Until all have ended; whatever one of them raises is raised here."""
    end = time.monotonic() + SECONDS
    while not context.join(timeout=5):
        assert time.monotonic() < end, f"ranks did not end within {SECONDS} s"


def run_on_ranks(function: Callable, cases: Sequence[tuple], world: int) -> None:
    """`function(*case)` on the first ranks for every case; a case starts with its world size.

    Whatever one rank raises is raised here.
    """
    ports = [free_port() for _ in cases]
    with started(_work, (function, tuple(cases), ports), world) as context:
        join(context)


def _work(rank: int, function: Callable, cases: tuple, ports: list[int]) -> None:
    for case, port in zip(cases, ports, strict=True):
        world = case[0]
        if rank < world:
            be_rank(rank, world, port)
            try:
                function(*case[1:])
            except BaseException as error:
                text = traceback.format_exc()
                raise AssertionError(f"rank {rank}, case {case}: {error}\n{text}") from None


def be_rank(rank: int, world: int, port: int) -> None:
    """Make this process one of several, as torchrun would."""
    torch.set_num_threads(1)
    os.environ.update(GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1", GOSSAMER_TUNE="off")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_PORT=str(port))
