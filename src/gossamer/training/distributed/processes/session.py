# SPDX-License-Identifier: Apache-2.0
"""The processes of a run: how they find each other, and how all of them end when one fails.

torchrun (or whoever starts the processes) gives RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The
store behind that address carries heartbeats and, once, the cause of a failure: the first rank that
knows it tells it, all others end silently with the same exit code.

What must be equal on all ranks is checked by digest, and the first difference is named. Ranks with
different masks add up gradients of different weights without any error: kept values are vectors,
and vectors of one length fit each other.
"""

import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from gossamer.errors import DistributedError, InputError
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.training.distributed.groups import keep_groups
from gossamer.training.distributed.mesh_sizes import AXES, MeshSizes, Place
from gossamer.training.distributed.processes.messages import gather_json
from gossamer.training.distributed.processes.watch import HeartbeatWatch, end_together
from gossamer.training.distributed.told_once import leave_it_to_others

_POLL_SECONDS = 0.05
# torch's own timeout comes first where it works.
_GRACE_SECONDS = 2.0


@dataclass(frozen=True)
class Timeouts:
    """Seconds after which a rank that does not answer ends the run.

    Attributes:
        start: until all ranks have come, and for checkpoints and evaluations.
        step: of every collective within a step.
        heartbeat: between two signs of life.
    """

    start: float = 600.0
    step: float = 60.0
    heartbeat: float = 5.0


@dataclass(frozen=True)
class RankSession:
    """A run's processes, all there.

    Attributes:
        sizes: of the grid.
        rank: of this process.
        mesh: the grid, with one process group per axis; their collectives end after
            `Timeouts.step`.
        patient: all ranks, for what may take as long as a start.
        watch: heartbeats; `watch.step` is what others are told of this rank.
    """

    sizes: MeshSizes
    rank: int
    mesh: DeviceMesh
    patient: dist.ProcessGroup
    watch: HeartbeatWatch

    @property
    def is_lead(self) -> bool:
        """Whether this rank writes files and talks to people."""
        return self.rank == 0

    @property
    def place(self) -> Place:
        """Where this rank stands."""
        return self.sizes.place(self.rank)

    def group(self, axis: str) -> dist.ProcessGroup:
        """The ranks that differ from this one along one axis only."""
        return self.mesh.get_group(axis)


def world_of_environment() -> int | None:
    """How many processes were started together; None if this one was started alone."""
    names = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    return int(os.environ["WORLD_SIZE"]) if names <= os.environ.keys() else None


def restarts() -> int:
    """How often torchrun has started the processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def joined(sizes: MeshSizes, timeouts: Timeouts | None = None) -> Iterator[RankSession]:
    """All processes of the grid, until the block ends; whatever one raises ends all of them.

    Raises:
        InputError: the number of processes is not the grid's; told by rank 0.
        DistributedError: a rank never came, failed or stopped answering; told by one rank. All
            others leave with SystemExit and the same code.
    """
    timeouts = timeouts or Timeouts()
    world, rank = world_of_environment(), int(os.environ.get("RANK", "0"))
    if world is None:
        raise InputError(
            f"mesh: {sizes} needs {sizes.num_ranks} processes. Start it with torchrun"
            f" --nproc-per-node {sizes.num_ranks} -m gossamer ..."
        )
    try:
        sizes.check_world(world)
    except InputError as error:
        if rank:
            leave_it_to_others(error.exit_code)
        raise
    # torchrun's store outlives rank 0.
    holds_store = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = _store(rank, world, holds_store, timeouts.start)
    watch = HeartbeatWatch(
        store,
        rank,
        world,
        interval=timeouts.heartbeat,
        limit=timeouts.step,
        holds_store=holds_store,
    )
    with end_together(watch):
        session = _connected(store, sizes, rank, watch, timeouts)
        watch.start()
        keep_groups()
        yield session
        dist.barrier(session.patient)
        # Nobody takes the store away while others still use it.
        watch.leave(timeouts.step)
    with suppress(RuntimeError):
        dist.destroy_process_group()


def _store(rank: int, world: int, holds_store: bool, seconds: float) -> Store:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    made: list[TCPStore | Exception] = []

    def attempt() -> None:
        try:
            made.append(
                TCPStore(
                    host,
                    port,
                    world,
                    is_master=holds_store,
                    timeout=timedelta(seconds=seconds),
                    # Who is missing is found out below, by name.
                    wait_for_workers=False,
                )
            )
        except (RuntimeError, ValueError) as error:
            made.append(error)

    # In a thread: torch waits for ever where another program listens and says nothing.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds + _GRACE_SECONDS)
    found = made[0] if made else RuntimeError("no answer from the port")
    if isinstance(found, TCPStore):
        # Workers that were started again must not meet addresses of the dead ones.
        return PrefixStore(f"gossamer/{restarts()}", found)
    text = str(found)
    if "EADDRINUSE" in text or "address already in use" in text:
        raise DistributedError(
            f"{host}:{port}: the port is in use by another program. Choose another one:"
            " torchrun --master-port, or --rdzv-endpoint."
        ) from found
    if rank > 1:
        raise SystemExit(DistributedError.exit_code)
    raise DistributedError(
        f"{host}:{port}: rank 0 did not answer within {seconds:.0f} s. Start all ranks, and check"
        " address, port and firewall."
    ) from found


def _connected(
    store: Store, sizes: MeshSizes, rank: int, watch: HeartbeatWatch, timeouts: Timeouts
) -> RankSession:
    """The session, once all ranks have come."""
    world, seconds = sizes.num_ranks, timeouts.start
    store.set(f"here/{rank}", socket.gethostname())
    store.add("here", 1)
    end = time.monotonic() + seconds
    while store.add("here", 0) < world:
        if time.monotonic() > end:
            missing = [str(r) for r in range(world) if not store.check([f"here/{r}"])]
            shown = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
            raise DistributedError(
                f"rank {shown} never came: {world - len(missing)} of {world} ranks are here after"
                f" {seconds:.0f} s. Start {world} processes, on hosts that reach each other."
            )
        time.sleep(_POLL_SECONDS)
    backend = "nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    long, short = timedelta(seconds=seconds), timedelta(seconds=timeouts.step)
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=long)
        patient = dist.new_group(timeout=long)
        device = "cuda" if backend == "nccl" else "cpu"
        shape = tuple(getattr(sizes, axis) for axis in AXES)
        mesh = init_device_mesh(device, shape, mesh_dim_names=AXES)
        for group in (None, *(mesh.get_group(axis) for axis in AXES)):
            _set_pg_timeout(short, group)
    except RuntimeError as error:
        raise DistributedError(
            f"rank {rank}: cannot connect to the others ({str(error)[:200]}). Set"
            " GLOO_SOCKET_IFNAME to the network interface of this host that they reach."
        ) from error
    return RankSession(sizes, rank, mesh, patient, watch)


Group = dist.ProcessGroup | None


def check_masks(model: nn.Module, when: str, group: Group = None) -> None:
    """Raise DistributedError on all ranks if a mask differs; one digest per rank travels."""
    digests = {name: layer.mask_digest() for name, layer in sparse_layers(model)}
    _check_equal(digests, f"the mask of layer {{}} differs {when}", group)


def check_alike(content: Mapping[str, Any], group: Group = None) -> None:
    """The same for what a run is: recipe, data, model, versions."""
    digests = {
        name: hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()
        for name, part in content.items()
    }
    _check_equal(digests, "the {} differs at the start", group)


def _check_equal(digests: dict[str, str], sentence: str, group: Group) -> None:
    whole = hashlib.sha256("\n".join(f"{k} {v}" for k, v in digests.items()).encode()).hexdigest()
    if len(set(gather_json(whole, group))) == 1:
        return
    # Layer by layer only now: the lists may be long.
    found: list[dict[str, str]] = gather_json(digests, group)
    first = found[0]
    names = list(dict.fromkeys(name for one in found for name in one))
    name = next(n for n in names if any(one.get(n) != first.get(n) for one in found))
    rank = next(r for r, one in enumerate(found) if one.get(name) != first.get(name))
    raise DistributedError(
        f"{sentence.format(name)} between ranks 0 and {rank}. Start all ranks with the same files"
        " and versions, and from the same checkpoint."
    )
