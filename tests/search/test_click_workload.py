# SPDX-License-Identifier: Apache-2.0
"""Searches on click logs: AUC, calibration batches, samples with labels, and a whole search."""

import numpy as np
import pytest
import torch

import gossamer
from gossamer.data.clicks import ClickRows, click_metrics
from gossamer.errors import InputError
from gossamer.search import shrink
from gossamer.search.candidates import Mask
from gossamer.search.workloads import load_workload
from gossamer.zoo import DLRM


def rows(count=200, several=False, seed=0):
    """Labels that follow the first number."""
    generator = np.random.default_rng(seed)
    numbers = generator.normal(size=(count, 2)).astype(np.float32)
    labels = (numbers[:, 0] + generator.normal(size=count) > 0).astype(np.uint8)
    if not several:
        ids = generator.integers(0, 5, size=count * 3).astype(np.int32)
        return ClickRows(numbers, ids, None, labels, 3)
    counts = generator.integers(0, 3, size=(count, 3)).astype(np.int32)
    ids = generator.integers(0, 5, size=int(counts.sum())).astype(np.int32)
    return ClickRows(numbers, ids, counts, labels, 3)


def model():
    torch.manual_seed(0)
    return DLRM(2, (5, 5, 5), width=4, bottom=(16,), top=(32,)).eval()


@pytest.mark.parametrize("several", [False, True])
def test_quality_is_auc_in_percent_of_data_apart(several):
    data, net = rows(several=several), model()
    work = load_workload(net, None, data)
    assert work.choosing.name == "AUC (%)"
    assert work.choosing.whole == 100.0
    held = rows(80, several=several, seed=1)
    given = load_workload(net, None, data, choose=held)
    with torch.no_grad():
        found = click_metrics(net(*held.inputs()), torch.from_numpy(held.labels))
    assert given.choosing.measure(net) == pytest.approx(100 * found["auc"], abs=1e-9)


def test_batches_and_samples_carry_their_labels():
    data, net = rows(), model()
    work = load_workload(net, None, data, choose=rows(40, seed=1), report=rows(40, seed=2))
    batches = work.batches()
    assert sum(len(batch.labels) for batch in batches) == 200
    assert torch.equal(torch.cat([b.labels for b in batches]), data.targets())
    batch = work.samples().make([3, 0, 3])
    assert batch.labels.tolist() == data.labels[[3, 0, 3]].astype(float).tolist()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        net(*data.take(np.array([3, 0, 3])).inputs()), batch.labels
    )
    torch.testing.assert_close(work.loss(net, batch), expected)


def test_one_class_is_refused_with_a_cure():
    data = rows()
    alike = ClickRows(data.numbers, data.ids, None, np.zeros(200, np.uint8), 3)
    with pytest.raises(InputError, match=r"AUC is undefined on the 200 rows to choose by"):
        load_workload(model(), None, data, choose=alike)


def test_one_shot_pruning_takes_its_batches():
    data, net = rows(), model()
    work = load_workload(net, None, data)
    before = work.choosing.measure(net)
    arguments = [batch.arguments for batch in work.batches()]
    report = gossamer.sparsify(net, "sparsegpt-50", data=arguments)
    assert report.sparsity == pytest.approx(0.5, abs=0.02)
    assert abs(work.choosing.measure(net) - before) < 40


def test_a_search_ends_with_a_model(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    result = shrink(
        model(),
        rows(600),
        tmp_path / "small",
        max_loss=1.0,
        budget_minutes=0.5,
        masks=[Mask("unstructured", 0.5)],
        rates=[1e-3],
    )
    assert result.path == tmp_path / "small"
    assert {point.candidate for point in result.points} >= {"dense", "dense-int8", "dense-bf16"}
    assert 0 < result.dense_quality <= 100
