# SPDX-License-Identifier: Apache-2.0
"""Initial rows are a function of their number: the same whoever makes which of them."""

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.tables.late_rows import (
    LateRows,
    fill_late,
    give_rows,
    is_late,
    late_of,
    late_rows,
    untouched,
)
from gossamer.zoo import DLRM

MANY = 2_000_000


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(1, 5))
def test_any_part_has_the_rows_of_the_whole(first, last, width):
    first, last = min(first, last), max(first, last)
    late = LateRows(7, 0.5, 3000, width)
    assert torch.equal(late.rows(first, last), late.rows(0, 3000)[first:last])


def test_rows_are_uniform_and_differ():
    rows = LateRows(3, 0.25, 5000, 8).rows(0, 5000)
    assert float(rows.abs().max()) <= 0.25
    assert float(rows.mean().abs()) < 0.005
    assert float(rows.std()) == pytest.approx(0.25 / 3**0.5, rel=0.02)
    assert len({tuple(row) for row in rows.tolist()}) == 5000
    assert not torch.equal(rows, LateRows(4, 0.25, 5000, 8).rows(0, 5000))


def test_late_tables_are_filled_with_the_same_rows():
    torch.manual_seed(0)
    now = DLRM(2, (1500, 3), width=4)
    torch.manual_seed(0)
    with late_rows():
        late = DLRM(2, (1500, 3), width=4)
    assert all(map(is_late, late.tables))
    with pytest.raises(InputError, match="no rows yet"):
        late(torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.int64))
    for table, other in zip(late.tables, now.tables, strict=True):
        assert torch.equal(late_of(table).rows(0, len(other.weight)), other.weight)
    fill_late(late)
    assert not any(map(is_late, late.tables))
    for name, tensor in now.state_dict().items():
        assert torch.equal(late.state_dict()[name], tensor)


def test_rows_that_were_given_meanwhile_count():
    with late_rows():
        table = nn.EmbeddingBag(5, 2, _weight=untouched(5, 2))
        give_rows(table, LateRows(1, 1.0, 5, 2))
    other = nn.EmbeddingBag(5, 2)
    table.load_state_dict(other.state_dict())
    assert late_of(table) is None
    fill_late(table)
    assert torch.equal(table.weight, other.weight)


def test_memory_is_taken_where_it_is_written():
    before = psutil.Process().memory_info().rss
    held = untouched(MANY, 64)  # 512 MB
    held[: MANY // 16] = 1
    grown = psutil.Process().memory_info().rss - before
    assert grown < held.nbytes / 8
    assert float(held[MANY // 2, 3]) == 0


def test_a_skeleton_has_no_rows():
    with torch.device("meta"):
        model = DLRM(2, (10**9, 3), width=4)
    assert model.tables[0].weight.is_meta
