# SPDX-License-Identifier: Apache-2.0
"""Packets of touched rows: what goes in comes out, and nothing wrong gets in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gossamer.errors import DistributedError, InputError
from gossamer.training.distributed.table_traffic import row_bytes, table_traffic
from gossamer.training.distributed.tables import sparse_tables
from gossamer.training.distributed.tables.codes import LARGEST, scales_of
from gossamer.training.distributed.tables.packet import RowPacket
from gossamer.training.distributed.tables.rows import add_up, group_tables
from gossamer.training.distributed.tables.sharing import estimated_union, sketch_of

WIRES = ("full", "int8", "int4")


@st.composite
def tables_with_gradients(draw):
    """Tables of any sizes; ids repeat, tables may have no gradient or an empty or a zero one."""
    tables = {}
    for index in range(draw(st.integers(1, 4))):
        height, width = draw(st.integers(1, 40)), draw(st.sampled_from([1, 2, 3, 4, 7, 16]))
        table = nn.Parameter(torch.zeros(height, width))
        count = draw(st.integers(-1, 12))
        if count >= 0:
            seed = draw(st.integers(0, 2**20))
            generator = torch.Generator().manual_seed(seed)
            ids = torch.randint(height, (1, count), generator=generator)
            size = draw(st.sampled_from([0.0, 1e-42, 1e-30, 1.0, 1e30]))
            values = size * torch.randn(count, width, generator=generator)
            table.grad = torch.sparse_coo_tensor(ids, values, table.shape, check_invariants=True)
        tables[f"t{index}"] = table
    return tables


def oracle(table, *more):
    """The sum of gradients as a float64 matrix."""
    grads = [t.grad for t in (table, *more) if t.grad is not None]
    return sum((g.to_dense().double() for g in grads), torch.zeros(table.shape).double())


@given(tables_with_gradients(), st.sampled_from(WIRES), st.booleans())
def test_a_packet_brings_its_rows(tables, wire, stochastic):
    before = {name: oracle(table) for name, table in tables.items()}
    packet, held = RowPacket(group_tables(tables)), list(tables.values())
    rows = [group.collect(held) for group in packet.groups]
    counts = packet.counts(rows)
    peaks = packet.peaks(rows, counts)
    scales = torch.ones_like(peaks) if wire == "full" else scales_of(peaks, wire)
    generator = torch.Generator().manual_seed(3) if stochastic else None
    raw = packet.pack(rows, counts, scales, wire, generator)
    assert len(raw) == packet.num_bytes(counts, wire)
    widths = [table.shape[1] for table in tables.values()]
    touched = {n: len(t.grad.coalesce().values()) for n, t in tables.items() if t.grad is not None}
    by_name = dict(zip(tables, widths, strict=True))
    assert len(raw) == sum(touched[n] * row_bytes(by_name[n], wire) for n in touched)
    came = packet.unpack(raw, counts, wire, 0)
    if wire != "full":
        assert all(
            float(part.values.abs().max()) <= LARGEST[wire] for part in came if len(part.keys)
        )
    came = packet.scaled(came, scales)
    for group, part in zip(packet.groups, came, strict=True):
        group.hand_out(part, held)
    scale_of = dict(zip(packet.names, scales.double().tolist(), strict=True))
    for name, table in tables.items():
        assert table.grad.is_coalesced()
        torch.sparse_coo_tensor(
            table.grad.indices(), table.grad.values(), table.shape, check_invariants=True
        )
        worst = float((oracle(table) - before[name]).abs().max())
        bound = 0.0 if wire == "full" else (1.0 if stochastic else 0.5) * scale_of[name]
        # Two roundings of the quotient beside the one to an integer.
        assert worst <= bound * (1 + 1e-4)


@given(tables_with_gradients(), st.integers(1, 5))
def test_sums_are_those_of_float64(tables, count):
    packet, held = RowPacket(group_tables(tables)), list(tables.values())
    parts = [[group.collect(held) for group in packet.groups] for _ in range(count)]
    for group, *of_group in zip(packet.groups, *parts, strict=True):
        total = add_up(of_group)
        assert bool((total.keys.diff() > 0).all())
        group.hand_out(total, (fresh := [nn.Parameter(torch.zeros_like(t)) for t in held]))
        for place in group.places:
            wanted = count * oracle(held[place])
            torch.testing.assert_close(oracle(fresh[place]), wanted, rtol=1e-6, atol=1e-43)


def one_table(height=10, width=3, ids=(1, 4), values=None):
    table = nn.Parameter(torch.zeros(height, width))
    numbers = torch.ones(len(ids), width) if values is None else values
    table.grad = torch.sparse_coo_tensor([list(ids)], numbers, table.shape, check_invariants=True)
    return table


def packed(table, wire="int8"):
    packet = RowPacket(group_tables({"users": table}))
    rows = [group.collect([table]) for group in packet.groups]
    counts = packet.counts(rows)
    return packet, counts, packet.pack(rows, counts, torch.ones(1), wire)


@pytest.mark.parametrize("bad", [-1, 10, 2**31 - 1])
def test_ids_out_of_range_are_refused(bad):
    packet, counts, raw = packed(one_table())
    raw[4:8].view(torch.int32)[0] = bad
    with pytest.raises(DistributedError, match=rf"rank 3 sent id {bad} of users, which has 10"):
        packet.unpack(raw, counts, "int8", 3)


def test_an_id_of_the_next_table_is_out_of_range():
    tables = {"a": one_table(ids=(9,)), "b": one_table(ids=(0,))}
    packet = RowPacket(group_tables(tables))
    rows = [group.collect(list(tables.values())) for group in packet.groups]
    counts = packet.counts(rows)
    raw = packet.pack(rows, counts, torch.ones(2), "full")
    raw[:4].view(torch.int32)[0] = 10
    with pytest.raises(DistributedError, match="id 10 of a"):
        packet.unpack(raw, counts, "full", 1)


def test_ids_twice_or_in_disorder_are_refused():
    for ids in ((4, 4), (4, 1)):
        packet, counts, raw = packed(one_table())
        raw[:8].view(torch.int32).copy_(torch.tensor(ids))
        with pytest.raises(DistributedError, match="ascending, each once"):
            packet.unpack(raw, counts, "int8", 0)


def test_counts_that_do_not_agree_are_refused():
    packet, counts, raw = packed(one_table())
    with pytest.raises(DistributedError, match="sent 14 bytes for 3 rows, expected 21"):
        packet.unpack(raw, counts + 1, "int8", 1)
    for wrong in (-1, 11):
        with pytest.raises(DistributedError, match=f"rank 1 announced {wrong} rows of users"):
            packet.check_counts(torch.tensor([[2], [wrong]]))


def test_what_is_no_table_is_refused():
    with pytest.raises(InputError, match="a matrix of floating-point rows"):
        group_tables({"t": torch.zeros(3)})
    with pytest.raises(InputError, match="ids travel in 32 bits"):
        group_tables({"t": torch.empty(2**31 + 1, 1, device="meta")})
    table = nn.Parameter(torch.zeros(3, 2))
    table.grad = torch.ones(3, 2)
    (group,) = group_tables({"t": table})
    with pytest.raises(InputError, match="t: its gradient is a whole matrix"):
        group.collect([table])


def test_tables_are_layers_that_say_so():
    shared = nn.EmbeddingBag(4, 2, sparse=True)
    frozen = nn.Embedding(4, 2, sparse=True)
    frozen.weight.requires_grad_(False)
    model = nn.ModuleList([shared, nn.Embedding(3, 2), frozen, nn.Linear(2, 2), shared])
    assert list(sparse_tables(model)) == ["0.weight"]
    assert list(sparse_tables(shared)) == ["weight"]


def test_a_sketch_counts_the_union():
    """With 1 row in 64 sampled the error is some 64 / sqrt(sampled rows), 10 % at 10,000."""
    table = nn.Parameter(torch.zeros(1, 1))
    (group,) = group_tables({"t": table})
    assert estimated_union(torch.stack([sketch_of([group.empty()])] * 2)) == 0
    generator = torch.Generator().manual_seed(0)
    for overlap in (0, 20_000, 40_000):
        keys = torch.randperm(10**6, generator=generator)[: 80_000 - overlap]
        parts = keys[:40_000], keys[-40_000:]
        rows = [group.empty()._replace(keys=part.sort().values) for part in parts]
        found = estimated_union(torch.stack([sketch_of([part]) for part in rows]))
        assert abs(found / (80_000 - overlap) - 1) < 0.15


def test_the_shorter_way_is_forecast():
    """Owners pay once ranks touch the same rows: U < (W - 1) N."""
    assert table_traffic({16: 1000}, 2.0, 2, "int8", 1).route == "gather"
    assert table_traffic({16: 1000}, 4.0, 4, "int8", 1).route == "gather"
    found = table_traffic({16: 1000}, 2.0, 8, "int8", 0)
    assert found.route == "owner"
    assert found.gather == 7 * 20_000
    assert found.bytes == found.owner == 7 / 8 * 3 * 20_000
    assert [row_bytes(16, wire) for wire in WIRES] == [68, 20, 12]
    assert row_bytes(7, "int4") == 8


def test_rows_of_16_bit_tables_are_added_in_float32():
    table = nn.Parameter(torch.zeros(5, 2, dtype=torch.bfloat16))
    ids, values = [[3, 3, 3]], torch.tensor([[256.0, 1], [1, 1], [1, 1]], dtype=torch.bfloat16)
    table.grad = torch.sparse_coo_tensor(ids, values, table.shape, check_invariants=True)
    (group,) = group_tables({"t": table})
    rows = group.collect([table])
    # In bfloat16 256 + 1 is 256.
    assert rows.values.tolist() == [[258.0, 3.0]]
    group.hand_out(rows, [table])
    assert table.grad.dtype is torch.bfloat16
