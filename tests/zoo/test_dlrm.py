# SPDX-License-Identifier: Apache-2.0
"""DLRM: its interaction against a float64 oracle, bags of several ids, edges, what is refused."""

import pytest
import torch

import gossamer
from gossamer.errors import InputError
from gossamer.zoo import DLRM


def oracle(model, numbers, bags):
    """Row by row with Python loops: `bags[row][table]` is a list of (id, weight)."""
    logits = []
    for x, row in zip(numbers, bags, strict=True):
        vectors = [] if model.bottom is None else [model.bottom(x[None])[0]]
        for table, bag in zip(model.tables, row, strict=True):
            vector = torch.zeros(model.width, dtype=x.dtype)
            for id_, weight in bag:
                vector = vector + weight * table.weight[id_]
            if model.pooling == "mean" and bag:
                vector = vector / len(bag)
            vectors.append(vector)
        first = sum(vectors) if model.bottom is None else vectors[0]
        dots = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
        features = torch.stack([*first, *dots])
        logits.append(model.top(features[None])[0, 0])
    return torch.stack(logits)


def flat(bags):
    """Ids, offsets and weights by table, as the model takes them."""
    ids, offsets, weights = [], [], []
    for table in zip(*bags, strict=True):
        sizes = torch.tensor([len(bag) for bag in table])
        ids.append(torch.tensor([id_ for bag in table for id_, _ in bag], dtype=torch.int64))
        weights.append(torch.tensor([w for bag in table for _, w in bag], dtype=torch.float64))
        offsets.append(sizes.cumsum(0) - sizes)
    return ids, offsets, weights


@pytest.mark.parametrize(
    ("num_numbers", "rows", "pooling"),
    [
        (3, [5], "sum"),
        (3, [5, 7, 2], "sum"),
        (0, [4], "sum"),
        (0, [4, 3, 9], "mean"),
        (2, [], "sum"),
    ],
)
def test_one_id_each_is_the_oracle(num_numbers, rows, pooling):
    torch.manual_seed(0)
    model = DLRM(num_numbers, rows, width=4, bottom=(6,), top=(5,), pooling=pooling).double()
    numbers = torch.randn(6, num_numbers, dtype=torch.float64)
    ids = torch.stack([torch.randint(size, (6,)) for size in rows], dim=1) if rows else None
    ids = torch.zeros(6, 0, dtype=torch.int64) if ids is None else ids
    bags = [[[(int(id_), 1.0)] for id_ in row] for row in ids]
    torch.testing.assert_close(
        model(numbers, ids), oracle(model, numbers, bags), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_bags_of_none_one_and_several_ids_are_the_oracle(weighted):
    torch.manual_seed(1)
    model = DLRM(2, [4, 6], width=3, bottom=(), top=()).double()
    numbers = torch.randn(4, 2, dtype=torch.float64)
    w = (lambda value: value) if weighted else (lambda value: 1.0)
    bags = [
        [[], [(0, w(0.5))]],
        [[(3, w(-1.0)), (3, w(2.0)), (1, w(0.25))], []],
        [[], []],
        [[(0, w(1.5))], [(5, w(1.0)), (4, w(0.1))]],
    ]
    ids, offsets, weights = flat(bags)
    found = model(numbers, ids, offsets, weights if weighted else None)
    torch.testing.assert_close(found, oracle(model, numbers, bags), rtol=0, atol=1e-12)


def test_gradients_reach_looked_up_rows_only():
    model = DLRM(1, [5, 4], width=2)
    for table in model.tables:
        table.sparse = True
    model(torch.ones(2, 1), torch.tensor([[1, 3], [4, 3]])).sum().backward()
    assert model.tables[0].weight.grad.coalesce().indices().tolist() == [[1, 4]]
    assert model.tables[1].weight.grad.coalesce().indices().tolist() == [[3]]


def test_a_batch_of_no_rows_has_no_logits():
    model = DLRM(2, [3])
    assert model(torch.zeros(0, 2), torch.zeros(0, 1, dtype=torch.int64)).shape == (0,)


def test_tables_begin_small_and_even():
    model = DLRM(1, [10_000, 4], width=8)
    assert float(model.tables[0].weight.detach().abs().max()) <= 0.01
    assert 0.3 < float(model.tables[1].weight.detach().abs().max()) <= 0.5


def test_saved_and_loaded_it_is_the_same(tmp_path):
    model = DLRM(3, [5, 70], width=4, bottom=(6, 5), top=(4,), pooling="mean").eval()
    model.features_digest.fill_(7)
    gossamer.save(model, tmp_path / "model")
    again = gossamer.load(tmp_path / "model")
    assert again.zoo_args() == model.zoo_args()
    assert torch.equal(again.features_digest, model.features_digest)
    numbers, ids = torch.randn(4, 3), torch.randint(5, (4, 2))
    with torch.inference_mode():
        assert torch.equal(again(numbers, ids), model(numbers, ids))


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: DLRM(0, []), "numbers or tables"),
        (lambda: DLRM(-1, [3]), "num_numbers"),
        (lambda: DLRM(1, [0]), "rows"),
        (lambda: DLRM(1, [2**31]), r"rows.*2147483647"),
        (lambda: DLRM(1, [3], width=(4, 8)), "width"),
        (lambda: DLRM(1, [3], pooling="max"), "sum, mean"),
        (lambda: DLRM(1, [3] * 5000), r"len\(rows\)"),
        (lambda: DLRM(2, [3])(torch.zeros(1, 3), torch.zeros(1, 1).long()), r"numbers \[rows, 2\]"),
        (lambda: DLRM(2, [3])(torch.zeros(1, 2), torch.zeros(1, 2).long()), r"ids \[rows, 1\]"),
        (lambda: DLRM(0, [3, 3])(torch.zeros(1, 0), [torch.zeros(1).long()] * 2), "need offsets"),
        (
            lambda: DLRM(0, [3])(torch.zeros(1, 0), [torch.zeros(1).long()] * 2, []),
            "ids of 1 tables, got 2",
        ),
    ],
)
def test_bad_arguments_are_refused_by_name(build, text):
    with pytest.raises(InputError, match=text):
        build()
