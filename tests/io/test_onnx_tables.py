# SPDX-License-Identifier: Apache-2.0
"""A DLRM with packed tables as an ONNX file: codes stay codes, and outputs stay what they were."""

import os
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.io.onnx import export_onnx
from gossamer.nn import quantize_tables
from gossamer.nn.layers.tables import Embedding, EmbeddingBag, fold_rows, packed_table, table_of
from gossamer.nn.layers.tables.plain import PlainTable
from gossamer.nn.surgery import replace_module
from gossamer.zoo import DLRM

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

ROWS = (3, 40, 1000)


def packed_model(bits, granularity, fold=False):
    torch.manual_seed(0)
    model = DLRM(2, ROWS, width=5, bottom=(8,), top=(8,)).eval()
    quantize_tables(model, bits=bits, granularity=granularity)
    for table in list(map(table_of, model.modules())):
        if table is not None:
            held = fold_rows(table, torch.arange(table.num_embeddings) % 3) if fold else table
            replace_module(model, table, packed_table(held))
    return model


def batch(count):
    generator = torch.Generator().manual_seed(count)
    ids = [torch.randint(0, rows, (count, 1), generator=generator) for rows in ROWS]
    return torch.randn(count, 2, generator=generator), torch.cat(ids, 1)


def answers(path, numbers, ids):
    """Of onnx's own evaluator."""
    session = onnx.reference.ReferenceEvaluator(os.fspath(path))
    return session.run(None, {"numbers_BN": numbers.numpy(), "ids": ids.numpy()})[0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("granularity", "fold"), [("table", False), ("row", True)])
def test_a_file_answers_as_the_model(tmp_path, granularity, fold):
    """Exported with one batch, asked with others: one row, and more; codes stay codes."""
    model = packed_model(4, granularity, fold)
    numbers, ids = batch(4)
    before = dict(model.named_modules())
    path = export_onnx(
        model,
        {"numbers_BN": numbers, "ids": ids},
        tmp_path / "model.onnx",
        batched=("numbers_BN", "ids"),
    )
    assert dict(model.named_modules()) == before
    for count in (1, 4, 33):
        numbers, ids = batch(count)
        with torch.no_grad():
            expected = model(numbers, ids).numpy()
        np.testing.assert_allclose(answers(path, numbers, ids), expected, rtol=1e-5, atol=1e-6)
    kept = len(model.tables[2].rows().data)
    stored = [one for one in onnx.load(path).graph.initializer if list(one.dims) == [kept, 3]]
    assert [len(one.raw_data) for one in stored] == [kept * 3]


@pytest.mark.parametrize("bits", [8, 4, 2, None])
@pytest.mark.parametrize("granularity", ["table", "row"])
@pytest.mark.parametrize("fold", [False, True])
def test_plain_tables_have_the_bits_of_the_kernels(bits, granularity, fold):
    model = packed_model(bits, granularity, fold)
    for table, rows in zip(model.tables, ROWS, strict=True):
        ids = torch.arange(rows).unsqueeze(1)
        assert torch.equal(PlainTable(table)(ids), table(ids))


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("has_end", [False, True])
def test_plain_bags_equal_the_kernels(mode, has_end):
    """Empty bags, several ids, padding, weights, against a float64 sum."""
    torch.manual_seed(1)
    stock = nn.EmbeddingBag(20, 7, mode=mode, padding_idx=3, include_last_offset=has_end)
    table = packed_table(EmbeddingBag.from_dense(stock, bits=4, granularity="row"))
    plain = PlainTable(table)
    ids = torch.tensor([3, 1, 19, 0, 0, 3, 7])
    offsets = torch.tensor([0, 0, 2, 2, 6, *([7] if has_end else [])])
    dense = table.dense_weight().double()
    weights = torch.randn(7) if mode == "sum" else None
    bounds = [0, 0, 2, 2, 6, 7]
    for bag, (begin, end) in enumerate(pairwise(bounds)):
        places = [p for p in range(begin, end) if ids[p] != 3]
        terms = [dense[ids[p]] * (1 if weights is None else weights[p].double()) for p in places]
        terms = torch.stack([torch.zeros(7).double(), *terms])
        wanted = terms.sum(0) / (max(1, len(places)) if mode == "mean" else 1)
        # A few roundings of the largest partial sum.
        bound = 4 * 2.0**-24 * terms.abs().sum(0)
        for layer in (plain, table):
            error = (layer(ids, offsets, weights)[bag].double() - wanted).abs()
            assert bool((error <= bound).all())
    square = ids[:6].view(2, 3)
    torch.testing.assert_close(plain(square), table(square))
    single = packed_table(Embedding.from_dense(nn.Embedding(20, 7, padding_idx=3), bits=2))
    assert torch.equal(PlainTable(single)(square), single(square))


def test_tables_in_training_are_refused(tmp_path):
    model = DLRM(2, (5,), width=4)
    quantize_tables(model, bits=4)
    inputs = {"numbers_BN": torch.zeros(1, 2), "ids": torch.zeros(1, 1, dtype=torch.int64)}
    with pytest.raises(InputError, match=r"tables.0: .* Pack it first"):
        export_onnx(model, inputs, tmp_path / "model.onnx")
    assert table_of(model.tables[0]) is not None
    with pytest.raises(InputError, match="batched: "):
        export_onnx(model, inputs, tmp_path / "model.onnx", batched=("x",))
