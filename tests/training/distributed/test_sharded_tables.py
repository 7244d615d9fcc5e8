# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows are on several ranks answer and learn as whole ones do."""

import copy
from itertools import pairwise

import psutil
import pytest
import torch
from grid_ranks import run_on_ranks
from hypothesis import given
from hypothesis import strategies as st
from test_table_exchange import make_loop
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.tables.late_rows import late_of, late_rows
from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement import MeshSettings, ProcessMesh
from gossamer.training.distributed.processes import Timeouts, joined, world_of_environment
from gossamer.training.distributed.tables import look_up, shard_tables
from gossamer.training.distributed.tables.shard_plan import TableSize, plan_shards
from gossamer.zoo import DLRM

PATIENT = Timeouts(start=120, step=120, heartbeat=2)
SIZES = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.builds(TableSize, st.integers(1, 100), st.integers(1, 9)),
)


@given(SIZES, st.integers(1, 6), st.sampled_from(["auto", "table", "row"]))
def test_every_row_is_somewhere_once(sizes, ranks, how):
    plan = plan_shards(sizes, ranks, how)
    assert list(plan) == list(sizes)
    for name, bounds in plan.items():
        assert len(bounds) == ranks + 1
        assert bounds[0] == 0
        assert bounds[-1] == sizes[name].rows
        assert all(a <= b for a, b in pairwise(bounds))
        if how == "table":
            assert set(bounds) <= {0, sizes[name].rows}


def test_a_table_that_no_rank_can_hold():
    sizes = {"small": TableSize(10, 4), "large": TableSize(1000, 4)}
    assert plan_shards(sizes, 4, "auto", room=1100)["large"] == (0, 250, 500, 750, 1000)
    assert plan_shards(sizes, 4, "auto", room=1100)["small"] == (0, 10, 10, 10, 10)
    with pytest.raises(InputError, match=r"large: 1000 rows are 4,000 bytes.*cut tables by rows"):
        plan_shards(sizes, 4, "table", room=1100)
    with pytest.raises(InputError, match=r"there is room for 900\. Use more ranks"):
        plan_shards(sizes, 4, "auto", room=900)


def model():
    torch.manual_seed(0)
    return nn.ModuleList(
        [
            nn.EmbeddingBag(23, 4, mode="sum", sparse=True),
            nn.EmbeddingBag(3, 5, mode="mean", sparse=True, padding_idx=1),
            nn.EmbeddingBag(11, 4, mode="sum", sparse=True, include_last_offset=True),
            nn.EmbeddingBag(1, 2, mode="sum", sparse=True),
        ]
    )


def questions(rank):
    """Bags of several ids, empty ones, weights; rank 1 asks for nothing of the last table."""
    generator = torch.Generator().manual_seed(rank)

    def draw(height, count):
        return torch.randint(height, (count,), generator=generator)

    return [
        (draw(23, 9), torch.tensor([0, 0, 4, 9]), torch.rand(9, generator=generator)),
        (draw(3, 8).view(4, 2), None, None),
        (draw(11, 6), torch.tensor([0, 3, 3, 5, 6]), None),
        (draw(1, 0 if rank == 1 else 4), torch.tensor([0] * 4), None),
    ]


def outputs_and_loss(tables, rank, jointly):
    asked = questions(rank)
    if jointly:
        found = look_up(list(tables), [t.asked(*q) for t, q in zip(tables, asked, strict=True)])
    else:
        found = [table(*question) for table, question in zip(tables, asked, strict=True)]
    coefficients = torch.Generator().manual_seed(50 + rank)
    return found, sum((torch.rand(f.shape, generator=coefficients) * f).sum() for f in found)


def compare(how, jointly):
    world = world_of_environment()
    with joined(MeshSizes(data=world), PATIENT) as session:
        whole, sharded = model(), model()
        cut = shard_tables(sharded, how)
        mine = copy.deepcopy(whole)
        found, loss = outputs_and_loss(sharded, session.rank, jointly)
        wanted, _ = outputs_and_loss(mine, session.rank, False)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)
        loss.backward()
        for rank in range(world):
            (outputs_and_loss(whole, rank, False)[1] / world).backward()
        held = 0
        for before, after in zip(whole, sharded, strict=True):
            share = cut[after.weight][1]
            gradient = torch.zeros(after.weight.shape)
            if after.weight.grad is not None:
                assert after.weight.grad.is_sparse
                gradient = after.weight.grad.to_dense()
            expected = before.weight.grad.to_dense().flatten()[share]
            torch.testing.assert_close(gradient.flatten(), expected)
            held += after.weight.numel()
        assert held < sum(table.weight.numel() for table in whole)
        with pytest.raises(InputError, match="ids from 23 to 23 asked of a table of 23 rows"):
            sharded[0].asked(torch.tensor([[23]]))
        with pytest.raises(InputError, match="needs offsets"):
            sharded[0].asked(torch.tensor([3]))
        odd = nn.ModuleList([nn.EmbeddingBag(4, 2, mode="sum", sparse=True, max_norm=1.0)])
        with pytest.raises(InputError, match="0: a table on several ranks pools by"):
            shard_tables(odd, how)


@pytest.mark.timeout(600)
def test_answers_and_gradients_are_those_of_whole_tables():
    cases = [(2, "table", False), (3, "row", True), (4, "row", False), (4, "auto", True)]
    run_on_ranks(compare, cases, 4)


def train_sharded(how):
    world = world_of_environment()
    with joined(MeshSizes(data=world), PATIENT) as session:
        mesh = ProcessMesh(session, MeshSettings(shard_tables=how))
        loop = make_loop(mesh, steps=20)
        loop.train()
        states = mesh.states()
        if session.is_lead:
            alone = make_loop(steps=20)
            alone.train()
            for name, tensor in alone.model.state_dict().items():
                torch.testing.assert_close(states[0][name], tensor, rtol=1e-4, atol=1e-5)
                found = loop.model.state_dict()[name]
                torch.testing.assert_close(found, tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.timeout(600)
def test_a_loop_shares_tables():
    run_on_ranks(train_sharded, [(2, "table"), (4, "row"), (4, "auto")], 4)


ROWS, WIDTH = 1_000_000, 32  # 128 MB


def bytes_of_a_rank():
    world = world_of_environment()
    with joined(MeshSizes(data=world), PATIENT) as session:
        process = psutil.Process()
        before = process.memory_info().rss
        torch.manual_seed(3)
        with late_rows():
            net = DLRM(2, (ROWS, 10), width=WIDTH, bottom=(4,), top=(4,))
        for table in net.tables:
            table.sparse = True
        shard_tables(net, "row")
        whole = 4 * ROWS * WIDTH
        grown = process.memory_info().rss - before
        assert grown < whole / world + whole / 8, (grown, whole)
        bounds, rank = net.tables[0].bounds, session.rank
        # The rows that a process which holds all of them has there.
        torch.manual_seed(3)
        with late_rows():
            again = DLRM(2, (ROWS, 10), width=WIDTH, bottom=(4,), top=(4,))
        first, last = bounds[rank], bounds[rank + 1]
        assert torch.equal(net.tables[0].weight, late_of(again.tables[0]).rows(first, last))
        assert torch.equal(net.tables[1].weight, late_of(again.tables[1]).rows(*_own(net, rank)))


def _own(net, rank):
    bounds = net.tables[1].bounds
    return bounds[rank], bounds[rank + 1]


@pytest.mark.timeout(600)
def test_a_rank_builds_its_own_rows_only():
    run_on_ranks(bytes_of_a_rank, [(4,)], 4)
