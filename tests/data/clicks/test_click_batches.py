# SPDX-License-Identifier: Apache-2.0
"""Batches by number: every row once in an epoch, the same at any time, memory within the window."""

import numpy as np
import pytest
from click_logs import plain_roles, roles, rows, write_csv

from gossamer.data.clicks import ClickBatches, open_clicks
from gossamer.data.clicks import batches as module
from gossamer.errors import InputError


@pytest.fixture
def part(tmp_path):
    table = rows(100)
    for i, row in enumerate(table):
        row["price"] = str(i)  # names a row
    log = write_csv(tmp_path / "log.csv", table)
    columns = roles(validation=0.0, test=0.0, transform="none")
    return open_clicks(tmp_path / "arrays", columns, log)


def named(data, rows):
    """Which rows these are."""
    prices = rows.numbers[:, 1] * data.features.deviation[1] + data.features.mean[1]
    return np.round(prices).astype(int).tolist()


@pytest.mark.parametrize("window", [1, 10, 25, 64, 1000])
@pytest.mark.parametrize("block", [1, 7, 1024])
def test_an_epoch_has_every_row_once(part, monkeypatch, window, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    batches = ClickBatches(part.parts["train"], 10, 3, window)
    assert len(batches) == 10
    for epoch in range(2):
        found = [named(part, batches[epoch * 10 + k]) for k in range(10)]
        assert sorted(row for batch in found for row in batch) == list(range(100))


def test_a_batch_is_a_function_of_its_number(part, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 8)
    batches = ClickBatches(part.parts["train"], 10, 3, 20)
    in_order = [named(part, batches[k]) for k in range(20)]
    again = ClickBatches(part.parts["train"], 10, 3, 20)
    for k in (19, 0, 7, 7, 12):
        assert named(part, again[k]) == in_order[k]
    assert in_order[:10] != in_order[10:]
    other = ClickBatches(part.parts["train"], 10, 4, 20)
    assert named(part, other[0]) != in_order[0]


def test_several_ids_stay_with_their_row(part):
    batch = ClickBatches(part.parts["train"], 100, 0, 1000)[0]
    _, ids, offsets = batch.inputs()
    sizes = np.diff([*offsets[2].tolist(), len(ids[2])])
    assert sizes.tolist() == [(0, 1, 2, 3)[row % 4] for row in named(part, batch)]


def test_the_last_rows_that_fill_no_batch_are_left_out(part):
    assert len(ClickBatches(part.parts["train"], 30, 0, 1000)) == 3
    with pytest.raises(InputError, match="100 rows to train on do not make one batch of 101"):
        ClickBatches(part.parts["train"], 101, 0, 1000)


def test_one_id_each_is_a_matrix(tmp_path):
    log = write_csv(tmp_path / "log.csv", rows(20))
    data = open_clicks(tmp_path / "arrays", plain_roles(validation=0.0, test=0.0), log)
    numbers, ids = ClickBatches(data.parts["train"], 5, 0, 10)[1].inputs()
    assert numbers.shape == (5, 2)
    assert ids.shape == (5, 2)
