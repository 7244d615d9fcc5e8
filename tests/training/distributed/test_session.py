# SPDX-License-Identifier: Apache-2.0
"""Ranks that find each other, or say in one sentence why not; and what must be equal on them."""

import signal
import socket
import time

import grid_tiny as tiny
import pytest
import torch
from grid_ranks import be_rank, free_port, run_on_ranks, started

from gossamer.errors import DistributedError, InputError
from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed import told_once as telling
from gossamer.training.distributed.placement import ProcessMesh
from gossamer.training.distributed.placement.gradients import average
from gossamer.training.distributed.processes import Timeouts, check_alike, check_masks, joined
from gossamer.training.distributed.processes.messages import broadcast_json, gather_json

QUICK = Timeouts(start=2, step=2, heartbeat=0.2)
PATIENT = Timeouts(start=120, step=120, heartbeat=2)


@pytest.fixture
def as_rank(monkeypatch):
    """This process as one of several; one that failed ignores SIGTERM until it ends."""
    before = signal.getsignal(signal.SIGTERM)

    def be(rank, world, port=None):
        for name, value in {
            "RANK": rank,
            "WORLD_SIZE": world,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port or free_port(),
        }.items():
            monkeypatch.setenv(name, str(value))

    yield be
    signal.signal(signal.SIGTERM, before)


def test_a_grid_without_torchrun_says_how_to_start_it():
    with pytest.raises(InputError, match="torchrun --nproc-per-node 2"), joined(MeshSizes(data=2)):
        pass


def test_another_number_of_processes_is_told_by_rank_0_alone(as_rank, monkeypatch):
    waited = []
    monkeypatch.setattr(telling.time, "sleep", waited.append)
    as_rank(0, 3)
    with pytest.raises(InputError, match="needs 2 processes, but 3"), joined(MeshSizes(data=2)):
        pass
    as_rank(1, 3)
    with pytest.raises(SystemExit) as ended, joined(MeshSizes(data=2)):
        pass
    assert ended.value.code == InputError.exit_code
    # torchrun would end rank 0 before it has spoken.
    assert waited == [telling.SECONDS]


def test_a_fault_in_a_recipe_is_told_once_per_host(monkeypatch):
    waited = []
    monkeypatch.setattr(telling.time, "sleep", waited.append)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(InputError, match="wrong"), telling.told_once_per_host():
        raise InputError("wrong.")
    assert not waited
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(SystemExit) as ended, telling.told_once_per_host():
        raise InputError("wrong.")
    assert ended.value.code == InputError.exit_code
    assert waited == [telling.SECONDS]


def test_a_port_in_use_is_named(as_rank):
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104  (as the store binds)
        taken.listen()
        port = taken.getsockname()[1]
        as_rank(0, 2, port)
        with pytest.raises(DistributedError, match=f"{port}: the port is in use"):
            joined(MeshSizes(data=2), QUICK).__enter__()


def test_a_port_of_a_program_that_says_nothing_is_given_up(as_rank):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        as_rank(1, 2, taken.getsockname()[1])
        with pytest.raises(DistributedError, match="rank 0 did not answer within 2 s"):
            joined(MeshSizes(data=2), QUICK).__enter__()


def test_a_rank_that_never_comes_is_named(as_rank):
    as_rank(0, 2)
    with pytest.raises(DistributedError, match="rank 1 never came: 1 of 2 ranks"):
        joined(MeshSizes(data=2), QUICK).__enter__()


def test_no_rank_0_is_named(as_rank):
    as_rank(1, 2)
    with pytest.raises(DistributedError, match="rank 0 did not answer within 2 s"):
        joined(MeshSizes(data=2), QUICK).__enter__()


def compare_ranks() -> None:
    with joined(MeshSizes(data=2), PATIENT) as session:
        assert gather_json({"rank": session.rank, "text": "x" * session.rank}) == [
            {"rank": 0, "text": ""},
            {"rank": 1, "text": "x"},
        ]
        assert broadcast_json(["from", session.rank]) == ["from", 0]
        model = tiny.build("compact")
        check_masks(model, "at the start")
        check_alike({"recipe": {"a": 1}, "data": "d"})
        if session.rank:
            layer = model.blocks[1].up
            mask = layer.mask()
            mask[0], mask[1] = mask[1].clone(), mask[0].clone()
            layer.remap(mask)
        with pytest.raises(DistributedError, match=r"layer blocks\.1\.up differs .* 0 and 1"):
            check_masks(model, "after step 3")
        with pytest.raises(DistributedError, match="the data differs at the start"):
            check_alike({"recipe": 1, "data": session.rank})


def reduce_kept_values() -> None:
    """bf16 on the wire, and gradients of a pipeline in one message."""
    with joined(MeshSizes(data=2), PATIENT) as session:
        params = [torch.nn.Parameter(torch.zeros(5)), torch.nn.Parameter(torch.zeros(0))]
        for wire, step in (("full", 1.0), ("bf16", 1 / 256)):
            for param in params:
                param.grad = torch.full_like(param, 1 + step * session.rank)
            average(params, session.group("data"), wire)
            exact = 1 + step / 2
            expected = exact if wire == "full" else float(torch.tensor(exact).bfloat16())
            assert params[0].grad.tolist() == [expected] * 5


@pytest.mark.timeout(600)
def test_two_ranks_agree_or_say_what_differs():
    run_on_ranks(_each, [(2, "compare"), (2, "reduce")], 2)


def _each(what: str) -> None:
    {"compare": compare_ranks, "reduce": reduce_kept_values}[what]()


def fail_on_rank(rank: int, failing: int, port: int) -> None:
    be_rank(rank, 2, port)
    try:
        with joined(MeshSizes(data=2), PATIENT) as session:
            loop = tiny.make_loop(tiny.build("compact"), ProcessMesh(session), steps=50)
            if rank == failing:
                loop.objective = _refuse
            loop.train()
    except InputError:
        # Only the rank that has the cause may tell it.
        raise SystemExit(40 + rank) from None


def _refuse(model, batch):
    raise InputError("this batch is no good.")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("failing", [0, 1])
def test_the_cause_is_told_by_the_rank_that_has_it(failing):
    with started(fail_on_rank, (failing, free_port()), 2) as context:
        end = time.monotonic() + 240
        for process in context.processes:
            process.join(max(0.1, end - time.monotonic()))
        codes = [process.exitcode for process in context.processes]
    assert codes[failing] == 40 + failing
    assert codes[1 - failing] == InputError.exit_code
