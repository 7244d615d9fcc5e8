# SPDX-License-Identifier: Apache-2.0
"""Gather + dequantise + pool against float64, to the bit between forms, sets and threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import ROUNDINGS, WIDTHS, batch, floats, pooled, rounded, rows_of

from gossamer.errors import InputError
from gossamer.ops.kernels import available_kernels
from gossamer.ops.table import Bags, PackedRows, Rounding, Rows, encode_rows, pool
from gossamer.ops.table.lookup import pool_by_torch

KINDS = ("sum", "mean", "weighted")


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


def packed_rows(weight, rounding):
    codes, scales = encode_rows(weight, rounding)
    return Rows(codes, weight.shape[1], rounding, scales)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_bags_equal_float64_and_forms_agree_to_the_bit(kernels, width, kind):
    weight, bags = floats(width, 40, width), batch(width, kind=kind, padding=3)
    for rounding in ROUNDINGS:
        rows = rows_of(weight, rounding)
        y, seen = pool(rows, bags)
        expected, size = pooled(rounded(weight, rounding), bags)
        assert ((y - expected).abs() <= 1e-6 * size + 1e-30).all()
        by_torch, also_seen = pool_by_torch(rows, bags)
        assert torch.equal(y, by_torch)
        if rounding is not None:
            assert seen == also_seen
            assert torch.equal(y, pool(packed_rows(weight, rounding), bags)[0])


@pytest.mark.parametrize("rounding", ROUNDINGS[1:])
def test_fake_quantisation_is_pack_unpack_lookup(kernels, rounding):
    weight = floats(1, 30, 21, spread=0.1)
    packed = packed_rows(weight, rounding)
    bags = batch(2, num_ids=30)
    y, _ = pool(rows_of(weight, rounding), bags)
    assert torch.equal(packed.floats(), rows_of(weight, rounding).floats())
    assert torch.equal(y, pool(Rows(packed.floats(), 21), bags)[0])
    assert torch.equal(y, pool(packed, bags)[0])


def test_ties_are_rounded_to_even_and_ends_are_clamped(kernels):
    weight = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 7.0, 9.0, -9.0, 7.5, -8.5, 100.0]])
    rows = Rows(weight, 11, Rounding(4), torch.ones(1))
    y, seen = pool(rows, Bags.single(torch.tensor([0])))
    assert y.tolist() == [[0, 2, 2, 0, -2, 7, 7, -8, 7, -8, 7]]
    assert seen.clipped == 4  # 9, -9, 7.5 and 100; -8.5 becomes -8 anyway
    assert seen.top == 100
    assert not torch.signbit(y[0, 3])


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_no_rows_and_no_bags(kernels, rounding):
    rows = rows_of(torch.empty(0, 5), rounding)
    y, _ = pool(rows, Bags.of(torch.empty(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)))
    assert torch.equal(y, torch.zeros(3, 5))
    assert pool(rows, Bags.of(torch.empty(0, 4, dtype=torch.int64)))[0].shape == (0, 5)
    empty = Bags.of(torch.empty(2, 0, dtype=torch.int64), mode="mean")
    assert torch.equal(pool(rows, empty)[0], torch.zeros(2, 5))


def test_include_last_offset_leaves_ids_behind_it_alone(kernels):
    weight, ids = floats(1, 9, 4), torch.arange(9)
    bags = Bags.of(ids, torch.tensor([0, 2, 5]), include_last_offset=True)
    expected = torch.stack([weight[:2].sum(0), weight[2:5].sum(0)])
    assert torch.allclose(pool(Rows(weight, 4), bags)[0], expected)
    assert torch.equal(pool(Rows(weight, 4), bags)[0], pool_by_torch(Rows(weight, 4), bags)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_threads_gives_the_same_bits(kind):
    weight, bags = floats(5, 500, 33), batch(6, num_ids=500, num_bags=400, kind=kind)
    found = []
    before = torch.get_num_threads()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        try:
            found.append(pool(rows_of(weight, Rounding(4)), bags))
        finally:
            torch.set_num_threads(before)
    assert all(torch.equal(found[0][0], y) and found[0][1] == seen for y, seen in found)


@pytest.mark.parametrize("wrong", [-1, 40, 2**40, -(2**62)])
@pytest.mark.parametrize("is_native", [True, False])
def test_an_id_outside_of_the_table_is_an_error(wrong, is_native):
    ids = torch.tensor([[1, 2], [wrong, 3]])
    run = pool if is_native else pool_by_torch
    with pytest.raises(InputError, match=rf"id {wrong} at position 2 is outside of \[0, 40\)"):
        run(Rows(floats(0, 40, 8), 8), Bags.of(ids))


@pytest.mark.parametrize(
    ("ids", "offsets", "more", "text"),
    [
        (torch.tensor([1.0]), None, {}, "int32 or int64"),
        (torch.tensor([1]), None, {}, "need offsets"),
        (torch.tensor([[1]]), torch.tensor([0]), {}, "bags already"),
        (torch.tensor([1, 2]), torch.tensor([0, 3]), {}, "ascend"),
        (torch.tensor([1, 2]), torch.tensor([0, -1]), {}, "ascend"),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), {}, "begin with 0"),
        (torch.tensor([1, 2]), torch.tensor([0.0]), {}, "offsets must be"),
        (torch.tensor([[1]]), None, {"weights": torch.ones(2, 1)}, "of the shape"),
        (torch.tensor([[1]]), None, {"weights": torch.ones(1, 1), "mode": "mean"}, "mode 'sum'"),
        (torch.zeros(1, 1, 1, dtype=torch.int64), None, {}, "ids must be"),
    ],
)
def test_a_batch_that_makes_no_sense_is_refused(ids, offsets, more, text):
    with pytest.raises(InputError, match=text):
        pool(Rows(floats(0, 5, 3), 3), Bags.of(ids, offsets, **more))


def test_int32_ids_and_strides_are_taken(kernels):
    weight, ids = floats(0, 30, 7), torch.arange(24, dtype=torch.int32).view(4, 6).t()
    y, _ = pool(Rows(weight, 7), Bags.of(ids, weights=torch.ones(4, 6).t()))
    assert torch.allclose(y, weight[ids.long()].sum(1))


def test_a_map_leads_several_ids_to_one_row(kernels):
    weight, row_map = floats(0, 5, 19), torch.tensor([0, 4, 4, 1, 2, 3, 4], dtype=torch.int32)
    ids = torch.randint(0, 7, (11, 4), generator=torch.Generator().manual_seed(1))
    for rounding in (None, Rounding(4), Rounding(8, "row")):
        rows = rows_of(weight, rounding)
        mapped = Rows(rows.data, 19, rounding, rows.scales, row_map)
        spread = Bags.of(row_map[ids].long())
        assert torch.equal(pool(mapped, Bags.of(ids))[0], pool(rows, spread)[0])
        assert torch.equal(pool_by_torch(mapped, Bags.of(ids))[0], pool(rows, spread)[0])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 60),
    st.integers(0, 30),
    st.sampled_from(KINDS),
    st.sampled_from(ROUNDINGS),
    st.integers(0, 10**6),
    st.sampled_from([1e-6, 0.01, 1.0, 1000.0]),
)
def test_any_table_and_batch(width, num_rows, num_bags, kind, rounding, seed, spread):
    weight = floats(seed, num_rows, width, spread)
    bags = batch(seed, num_rows, num_bags, kind, padding=seed % 3 - 1)
    y, _ = pool(rows_of(weight, rounding), bags)
    expected, size = pooled(rounded(weight, rounding), bags)
    assert ((y - expected).abs() <= 1e-6 * size + 1e-30).all()
    if rounding is not None:
        assert torch.equal(y, PackedRows(packed_rows(weight, rounding))(bags))


def test_infinities_and_nan_have_no_code():
    for value in (float("inf"), float("nan"), -float("inf")):
        weight = floats(0, 4, 3)
        weight[2, 1] = value
        with pytest.raises(InputError, match="NaN or infinities"):
            encode_rows(weight, Rounding(4))


def test_a_lookup_sees_nan(kernels):
    weight = floats(0, 4, 3)
    weight[2, 1] = float("nan")
    for rounding, scales in ((Rounding(4), torch.ones(1)), (Rounding(4, "row"), None)):
        _, seen = pool(Rows(weight, 3, rounding, scales), Bags.single(torch.arange(4)))
        assert seen.top != seen.top
