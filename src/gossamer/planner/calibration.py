# SPDX-License-Identifier: Apache-2.0
"""This machine as a cluster: short measurements of what a plan needs to know."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import nn

from gossamer.nn.surgery.compaction import compact
from gossamer.ops.timing import race, stopwatch
from gossamer.planner.cluster import GB, SCHEMA_VERSION, ClusterSpec, CompactSpeed
from gossamer.runs import sparsify
from gossamer.zoo import GPTBlock

DENSITIES: Final = (0.05, 0.1, 0.2, 0.5)
_HEAD = 64
_LOOPBACK_BYTES = 1 << 26
_PING_PONGS = 200
_ADAM_ENTRIES = 1 << 22
# Gradient read; weight and two moments read and written.
_ADAM_MOVED = 28


def calibrate(
    *,
    width: int = 512,
    tokens: int = 1024,
    repeats: int = 5,
    densities: tuple[float, ...] = DENSITIES,
) -> ClusterSpec:
    """Measure training steps, memory and loopback; about half a minute.

    Args:
        width: of the transformer block that is trained.
        tokens: of its input.
        repeats: of every measurement; dense and compact in turn, the best counts.
        densities: of compact blocks.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    overhead = _runtime_pages() * page
    ranks = max(1, (os.cpu_count() or 1) // torch.get_num_threads())
    with _busy_neighbours(ranks - 1, width, tokens):
        rate, speeds = measure_blocks(width, tokens, repeats, densities)
        weight = nn.Parameter(torch.randn(_ADAM_ENTRIES))
        weight.grad = torch.randn(_ADAM_ENTRIES)
        (seconds,) = _best([torch.optim.AdamW([weight]).step], repeats)
        moved = _ADAM_MOVED * _ADAM_ENTRIES / seconds
    bandwidth, latency = measure_loopback()
    loopback = {"gb_s": bandwidth / GB, "latency_us": latency * 1e6}
    return ClusterSpec.model_validate(
        {
            "gossamer-cluster": SCHEMA_VERSION,
            "description": f"This machine, {torch.get_num_threads()} thread(s) per rank",
            "figures": "measured",
            "device": "cpu",
            "nodes": 1,
            "ranks_per_node": ranks,
            "memory": {
                "gb": page * os.sysconf("SC_PHYS_PAGES") / ranks / GB,
                "usable": 0.9,
                "overhead_gb": overhead / GB,
            },
            "compute": {"tflops": rate / 1e12, "memory_gb_s": moved / GB, "compact": speeds},
            "links": {"inside": loopback, "between": loopback, "node_gb_s": bandwidth / GB},
        }
    )


def measure_blocks(
    width: int, tokens: int, repeats: int, densities: tuple[float, ...]
) -> tuple[float, tuple[CompactSpeed, ...]]:
    """Operations per second of a dense block, and how much faster its products are compact.

    The speed-up is that of the products alone: what norms, attention and activations take is not
    gained, so it is put on the side that stays.
    """
    x = torch.randn(1, tokens, width)
    blocks = [_block(width, None), *(_block(width, density) for density in densities)]
    seconds = _best([partial(_train, block, x) for block in blocks], repeats)
    products = 3 * 2.0 * 12 * width * width * tokens
    attention = 3 * 4.0 * width * tokens * tokens
    rate = (products + attention) / seconds[0]
    left = [max(taken * rate - attention, products / 100) for taken in seconds[1:]]
    return rate, tuple(
        CompactSpeed(density=density, speedup=round(products / rest, 3))
        for density, rest in zip(densities, left, strict=True)
    )


@contextmanager
def _busy_neighbours(count: int, width: int, tokens: int) -> Iterator[None]:
    """Other ranks that train meanwhile: cores share caches, memory and clock."""
    code = f"from gossamer.planner.calibration import train_on; train_on({width}, {tokens})"
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)  # noqa: S603
        for _ in range(count)
    ]
    try:
        for process in started:
            process.stdout.readline()  # type: ignore[union-attr]
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


def train_on(width: int, tokens: int) -> None:
    """Train a dense block until somebody ends this process."""
    block, x = _block(width, None), torch.randn(1, tokens, width)
    print("training", flush=True)  # noqa: T201  (the word its maker waits for)
    while True:
        _train(block, x)


def measure_loopback() -> tuple[float, float]:
    """Bytes per second of one TCP flow on this machine, and seconds of a message one way."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        echo = threading.Thread(target=_echo, args=(server,), daemon=True)
        echo.start()
        with socket.create_connection(server.getsockname()) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            began = time.perf_counter()
            for _ in range(_PING_PONGS):
                client.sendall(b"x")
                client.recv(1)
            latency = (time.perf_counter() - began) / _PING_PONGS / 2
            began = time.perf_counter()
            client.sendall(bytes(_LOOPBACK_BYTES))
            client.recv(1)
            bandwidth = _LOOPBACK_BYTES / (time.perf_counter() - began)
        echo.join()
    return bandwidth, latency


def _block(width: int, density: float | None) -> nn.Module:
    torch.manual_seed(0)
    block: nn.Module = GPTBlock(width, max(1, width // _HEAD), 4 * width)
    if density is not None:
        sparsify(block, sparsity=1 - density)
        compact(block, mode="kernel")
    return block


def _train(block: nn.Module, x: torch.Tensor) -> None:
    """Forward and backward, the gradient of the input included, as inside a model."""
    block.zero_grad()
    x = x.detach().requires_grad_()
    block(x).square().mean().backward()


def _best(steps: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """The shortest seconds of each step, taken in turn; the first round only warms up."""
    return [
        us / 1e6
        for us in race([stopwatch(step) for step in steps], min_rounds=repeats, max_rounds=repeats)
    ]


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_PING_PONGS):
            connection.recv(1)
            connection.sendall(b"x")
        left = _LOOPBACK_BYTES
        while left:
            left -= len(connection.recv(min(left, 1 << 20)))
        connection.sendall(b"x")


def _runtime_pages() -> int:
    """Memory of a process that has trained something tiny: torch, gossamer, their libraries."""
    for density in (None, DENSITIES[0]):
        block = _block(_HEAD, density)
        _train(block, torch.randn(1, 1, _HEAD))
        torch.optim.AdamW(block.parameters()).step()
    return int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc").exists() else 0
