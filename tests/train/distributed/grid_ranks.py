# SPDX-License-Identifier: Apache-2.0
"""Run functions on several processes of this machine: many cases in one set of processes."""

import os
import socket
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.multiprocessing as mp

SECONDS = 600


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_on_ranks(function: Callable, cases: Sequence[tuple], world: int) -> None:
    """`function(*case)` on the first ranks for every case; a case starts with its world size.

    Whatever one rank raises is raised here.
    """
    ports = [free_port() for _ in cases]
    context = mp.spawn(_work, (function, tuple(cases), ports), nprocs=world, join=False)
    try:
        for _ in range(world):
            if context.join(timeout=SECONDS):
                return
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    raise AssertionError(f"ranks did not end within {SECONDS} s")


def _work(rank: int, function: Callable, cases: tuple, ports: list[int]) -> None:
    torch.set_num_threads(1)
    os.environ.update(GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1", GOSSAMER_TUNE="off")
    for case, port in zip(cases, ports, strict=True):
        world = case[0]
        if rank < world:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_PORT=str(port))
            try:
                function(*case[1:])
            except BaseException as error:
                text = traceback.format_exc()
                raise AssertionError(f"rank {rank}, case {case}: {error}\n{text}") from None


def here(folder: str | Path, name: str) -> Path:
    return Path(folder) / name
