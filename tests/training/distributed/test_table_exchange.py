# SPDX-License-Identifier: Apache-2.0
"""Gradients of tables on several ranks: means of all, the same bits everywhere, by every route."""

import hashlib

import pytest
import torch
import torch.distributed as dist
from grid_ranks import run_on_ranks
from table_model import batch, build, loss

from gossamer.data import RepeatedBatches
from gossamer.errors import DistributedError, InputError
from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement import MeshSettings, ProcessMesh
from gossamer.training.distributed.processes import Timeouts, joined, world_of_environment
from gossamer.training.distributed.processes.messages import gather_json
from gossamer.training.distributed.tables import (
    TableExchange,
    TableSettings,
    sharing,
    sparse_tables,
)
from gossamer.training.loop import LearningRate, Loop, LoopSettings
from gossamer.training.memory import measure

PATIENT = Timeouts(start=120, step=120, heartbeat=2)
CASES = [
    (world, wire, rounding, route)
    for world in (2, 4)
    for wire, rounding in (
        ("full", "nearest"),
        ("int8", "nearest"),
        ("int8", "stochastic"),
        ("int4", "nearest"),
    )
    for route in ("gather", "owner", "auto")
]


def digest(model):
    whole = hashlib.sha256()
    for tensor in model.state_dict().values():
        whole.update(tensor.numpy().tobytes())
    return whole.hexdigest()


def compare_with_dense(wire, rounding, route):
    """One step against the float64 mean over all ranks; then 25 more, and bits are compared."""
    world = world_of_environment()
    with joined(MeshSizes(data=world), PATIENT) as session:
        model, rank = build(), session.rank
        tables = sparse_tables(model)
        settings = TableSettings(wire, rounding, route, seed=5)
        exchange = TableExchange(tables, settings)
        dense = build(sparse=False).double()
        loss(dense, torch.cat([batch(r, 8) for r in range(world)])).backward()
        loss(model, batch(rank, 8)).backward()
        own = {name: table.grad.to_dense().abs().max() for name, table in tables.items()}
        exchange.reduce(0)
        for name, table in tables.items():
            most = own[name].clone()
            dist.all_reduce(most, dist.ReduceOp.MAX)
            # Each rank errs by half a step at most, an owner once more by half of its own.
            levels = {"full": 2**20, "int8": 127, "int4": 7}[wire]
            steps = (0.5 if rounding == "nearest" else 1.0) * (1 if route == "gather" else 2)
            worst = float((table.grad.to_dense() - dense.get_parameter(name).grad).abs().max())
            assert worst <= steps * float(most) / levels * (1 + 1e-4), (name, worst)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(1, 26):
            optimizer.zero_grad()
            # A rank has no row of any table now and then.
            if step % 5 or rank:
                loss(model, batch(100 * step + rank)).backward()
            exchange.reduce(step)
            for param in (*model.inner.parameters(), *model.top.parameters()):
                param.grad = None
            optimizer.step()
        assert len(set(gather_json(digest(model)))) == 1
        assert len(set(gather_json(f"{exchange.last.union} {exchange.last.route}"))) == 1


@pytest.mark.timeout(600)
def test_means_are_those_of_dense_gradients():
    run_on_ranks(compare_with_dense, CASES, 4)


def refuse_what_differs():
    with joined(MeshSizes(data=2), PATIENT) as session:
        tables = sparse_tables(build())
        with pytest.raises(InputError, match="there is none"):
            TableExchange({})
        name = next(iter(tables))
        other = dict(tables)
        if session.rank:
            other[name] = torch.nn.Parameter(torch.zeros(61, 4))
        with pytest.raises(DistributedError, match=f"table {name} differs at the start"):
            TableExchange(other)
        with pytest.raises(DistributedError, match="way tables travel differs"):
            TableExchange(tables, TableSettings(wire="int8" if session.rank else "int4"))
        exchange = TableExchange(tables, TableSettings(wire="int8"))
        with pytest.raises(DistributedError, match=r"different steps: \[0, 1\]"):
            exchange.reduce(session.rank)
        exchange.reduce(7)
        assert exchange.last.union == 0
        # What is not finite on one rank arrives on all of them.
        table = tables[name]
        values = torch.full((1, 4), float("nan") if session.rank else 1.0)
        table.grad = torch.sparse_coo_tensor([[3]], values, table.shape)
        exchange.reduce(8)
        assert bool(table.grad.values().isnan().all())


@pytest.mark.timeout(600)
def test_ranks_that_differ_are_told():
    run_on_ranks(refuse_what_differs, [(2,)], 2)


def make_loop(processes=None, *, sparse=True, steps=100, kind=torch.optim.SGD, **more):
    model = build(sparse=sparse)
    settings = LoopSettings(
        steps=steps,
        rate=LearningRate("constant", steps, 0),
        clip=0.5,
        log_every=10,
        checkpoint_every=steps // 2,
    )
    batches = RepeatedBatches([batch(number, 16) for number in range(7)])
    optimizer = kind(model.parameters(), 0.2)
    return Loop(model, optimizer, loss, batches, settings, processes=processes, **more)


def train_on_a_mesh(wire, rounding, route):
    world = world_of_environment()
    with joined(MeshSizes(data=world), PATIENT) as session:
        tables = TableSettings(wire, rounding, route)
        mesh = ProcessMesh(session, MeshSettings(tables=tables))
        loop = make_loop(mesh)
        loop.train()
        assert len(set(gather_json(digest(loop.model)))) == 1
        if session.is_lead:
            alone = make_loop()
            alone.train()
            pairs = zip(alone.model.parameters(), loop.model.parameters(), strict=True)
            worst = max(float((a - b).detach().abs().max()) for a, b in pairs)
            assert worst < {"full": 2e-4, "int8": 0.1, "int4": 1.0}[wire]
            losses = [float(loss(m, batch(3, 512)).detach()) for m in (build(), loop.model)]
            assert losses[1] < losses[0]


@pytest.mark.timeout(900)
def test_a_loop_keeps_ranks_alike():
    cases = [(2, "int8", "nearest", "auto"), (4, "int8", "stochastic", "auto")]
    cases += [(4, "full", "nearest", "gather"), (4, "int4", "nearest", "owner")]
    run_on_ranks(train_on_a_mesh, cases, 4)


def test_one_process_takes_sparse_gradients():
    """The same steps as with whole matrices, clipping included."""
    sparse, dense = make_loop(steps=20), make_loop(steps=20, sparse=False)
    sparse.train()
    dense.train()
    for one, other in zip(sparse.model.parameters(), dense.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_touched_rows_are_what_a_gradient_holds():
    model = build()
    loss(model, batch(0)).backward()
    grads = [table.weight.grad for table in model.tables]
    held = sum(grad._values().nbytes + grad._indices().nbytes for grad in grads)
    dense = sum(param.nbytes for param in (*model.inner.parameters(), *model.top.parameters()))
    assert measure(model).rest.measured["gradients"] == held + dense


def gather_both_ways():
    """Packets of unequal sizes, one of them empty, at once and in a ring."""
    world = world_of_environment()
    with joined(MeshSizes(data=world), PATIENT) as session:
        sizes = [1000, 0, 7, 40][:world]
        packets = [torch.full((size,), rank, dtype=torch.uint8) for rank, size in enumerate(sizes)]
        for most in (2**19, 1, 2**19):
            sharing._MOST_AT_ONCE = most
            found = sharing.gather_bytes(packets[session.rank], sizes, None)
            assert all(map(torch.equal, found, packets))


@pytest.mark.timeout(600)
def test_packets_of_any_size_reach_all():
    run_on_ranks(gather_both_ways, [(2,), (4,)], 4)
