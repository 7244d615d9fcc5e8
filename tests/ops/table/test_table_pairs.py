# SPDX-License-Identifier: Apache-2.0
"""All tables of a model in one call: against float64, to the same bits on every kernel set."""

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.nn.layers.tables import fold_rows, packed_table
from gossamer.ops.table import Rows
from gossamer.ops.table.pairs import TablePairs
from gossamer.zoo import DLRM

HOW = ({"bits": 4}, {"bits": 8, "granularity": "row"}, {"bits": 2}, {"bits": None})


def packed_dlrm(rows, width=8, numbers=3, seed=0, **more):
    torch.manual_seed(seed)
    model = DLRM(numbers, rows, width=width, bottom=(8,), top=(8,), **more).eval()
    for place, stock in enumerate(model.tables):
        how = HOW[place % len(HOW)]
        model.tables[place] = packed_table(gossamer.nn.EmbeddingBag.from_dense(stock, **how))
    return model.requires_grad_(False)


def one_by_one(model, numbers, ids):
    """The same model where a hook forbids the one call."""
    handle = model.tables[0].register_forward_hook(lambda *_: None)
    try:
        return model(numbers, ids)
    finally:
        handle.remove()


@pytest.mark.parametrize("batch", [0, 1, 2, 15, 16, 17, 130])
@pytest.mark.parametrize("width", [1, 8, 16, 17, 64])
@pytest.mark.parametrize("numbers", [0, 3])
def test_a_packed_dlrm_agrees_with_one_call_per_table(batch, width, numbers):
    model = packed_dlrm((11, 5, 1, 40, 3), width, numbers)
    x = torch.randn(batch, numbers)
    ids = torch.stack([torch.randint(0, size, (batch,)) for size in model.rows], 1)
    assert torch.allclose(model(x, ids), one_by_one(model, x, ids), atol=1e-5)


@pytest.mark.parametrize("width", [5, 16, 33])
def test_dots_against_float64(width, monkeypatch):
    model = packed_dlrm((11, 5, 1, 40, 3), width)
    tables = [table.rows() for table in model.tables]
    ids = torch.stack([torch.randint(0, size, (37,)) for size in model.rows], 1)
    first = torch.randn(37, width)
    found = []
    for kernels in ("reference", "avx2", "avx512"):
        monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
        found.append(TablePairs(tables, [-1] * 5)(ids, first))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    rows = [table.floats()[ids[:, i]] for i, table in enumerate(tables)]
    vectors = torch.stack([first, *rows], 1).double()
    dots = vectors @ vectors.transpose(1, 2)
    i, j = torch.tril_indices(6, 6, offset=-1)
    assert torch.equal(found[0][:, :width], first)
    assert torch.allclose(found[0][:, width:].double(), dots[:, i, j], atol=1e-5)


def test_padding_maps_and_edits_are_seen():
    model = packed_dlrm((11, 5))
    model.tables[0].padding_idx = 2
    x, ids = torch.randn(3, 3), torch.tensor([[2, 0], [1, 1], [2, 4]])
    assert torch.allclose(model(x, ids), one_by_one(model, x, ids), atol=1e-5)
    before = model(x, ids)
    model.tables[1].scales.mul_(3)
    assert not torch.equal(model(x, ids), before)
    assert torch.allclose(model(x, ids), one_by_one(model, x, ids), atol=1e-5)
    counts = torch.tensor([5, 0, 0, 2, 1])
    model.tables[1] = fold_rows(model.tables[1], counts, shared="mean")
    assert torch.allclose(model(x, ids), one_by_one(model, x, ids), atol=1e-5)
    assert torch.equal(copy.deepcopy(model)(x, ids), model(x, ids))


def test_wrong_ids_are_named_and_nothing_is_read():
    model = packed_dlrm((11, 5))
    for wrong in (5, -1):
        with pytest.raises(InputError, match=r"id .* of table 1 at position 1 is outside"):
            model(torch.randn(2, 3), torch.tensor([[0, 0], [0, wrong]]))


def test_shapes_are_checked():
    pairs = TablePairs([Rows(torch.zeros(3, 4), 4)], [-1])
    with pytest.raises(InputError, match=r"expected ids \[rows, 1\]"):
        pairs(torch.zeros(2, 2, dtype=torch.int64), None)
    with pytest.raises(InputError, match="expected vectors"):
        pairs(torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="one width"):
        TablePairs([Rows(torch.zeros(3, 4), 4), Rows(torch.zeros(3, 5), 5)], [-1, -1])


def test_other_dtypes_and_gradients_take_the_long_way():
    model = packed_dlrm((11, 5))
    x, ids = torch.randn(3, 3), torch.tensor([[2, 0], [1, 1], [2, 4]])
    assert torch.allclose(model(x, ids.int()), model(x, ids), atol=1e-5)
    model.bottom.requires_grad_(True)
    model(x, ids).sum().backward()
    assert all(p.grad is not None for p in model.bottom.parameters())


def test_tables_that_are_trained_are_called():
    torch.manual_seed(0)
    model = DLRM(3, (11, 5), width=8, bottom=(8,), top=(8,)).eval()
    assert isinstance(model.tables[0], nn.EmbeddingBag)
    x, ids = torch.randn(3, 3), torch.tensor([[2, 0], [1, 1], [2, 4]])
    fast = gossamer.compile(model)
    assert torch.equal(fast(x, ids), model(x, ids))
