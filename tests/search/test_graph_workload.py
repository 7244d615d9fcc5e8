# SPDX-License-Identifier: Apache-2.0
"""Searches on graphs: accuracy on validation, the test at the end, and a whole search."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import gossamer
from gossamer.data import generator_of
from gossamer.data.graphs import GraphRules, NodeData
from gossamer.errors import InputError
from gossamer.search import shrink
from gossamer.search.candidates import Mask
from gossamer.search.workloads import load_workload, read_part
from gossamer.zoo.graph_nets import GraphNet
from gossamer.zoo.problems.graphs import partition_problem


def problem():
    return partition_problem(generator_of(3), num_nodes=160, inside=0.15, between=0.02)


def data(**rules):
    found = problem()
    return NodeData.of(found.edges, found.x, found.y, GraphRules(**rules))


def model():
    torch.manual_seed(0)
    return GraphNet(4, 4, width=16, dropout=0.0).eval()


def test_quality_is_accuracy_of_the_parts_of_the_file():
    held, net = data(), model()
    work = load_workload(net, None, held)
    assert work.choosing.name == "accuracy (%)"
    with torch.no_grad():
        right = net(held.x, held.graph).argmax(1) == held.y
    for quality, part in ((work.choosing, "validation"), (work.reporting, "test")):
        nodes = held.parts[part]
        assert quality.measure(net) == pytest.approx(100 * float(right[nodes].double().mean()))
    batch = work.samples().make([3, 0])
    nodes = held.parts["train"][[3, 0]]
    assert (batch.labels != -100).sum() == 2
    expected = cross_entropy(net(held.x, held.graph)[nodes], held.y[nodes])
    torch.testing.assert_close(work.loss(net, batch), expected)
    # What is timed is never what a layer kept.
    for _ in range(3):
        work.timed.run(net)
    assert net.layers[0].choice.order == "propagate first"


def test_what_is_refused(tmp_path):
    with pytest.raises(InputError, match="no test nodes"):
        load_workload(model(), None, data(test=0.0))
    with pytest.raises(InputError, match="parts of a graph are in its file"):
        load_workload(model(), None, data(), choose=data())
    found = problem()
    np.savez(tmp_path / "g.npz", edges=found.edges.T, x=found.x, y=found.y)
    assert isinstance(read_part(tmp_path / "g.npz"), NodeData)


def test_a_search_ends_with_a_model(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    result = shrink(
        model(),
        data(),
        tmp_path / "small",
        max_loss=1.0,
        budget_minutes=0.5,
        masks=[Mask("unstructured", 0.5)],
        rates=[1e-3],
    )
    assert result.path == tmp_path / "small"
    assert {point.candidate for point in result.points} >= {"dense", "dense-int8", "dense-bf16"}
    assert 0 < result.dense_quality <= 100
    assert isinstance(gossamer.load(result.path), GraphNet)
