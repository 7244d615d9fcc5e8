# SPDX-License-Identifier: Apache-2.0
"""Graphs of the benchmarks mean the same to all contenders."""

import numpy as np
import pytest
import torch

from gossamer import graph as gg
from support.graph_data import simple_graph
from support.graph_models import step_of, two_layers

# 0-1 is there twice, with others between; 2 has a loop, 3 has it twice; 4 has no edges.
EDGES = np.array([[0, 1, 2, 0, 3, 2, 3, 1, 2], [1, 0, 2, 1, 3, 0, 3, 2, 1]])


def case_of(edges):
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    return simple_graph("small", edges, x, np.array([0, 1, 2, 0, 1]))


def test_each_edge_is_there_once_in_the_order_given_and_loops_are_not():
    assert case_of(EDGES).edges.tolist() == [[0, 1, 2, 1, 2], [1, 0, 0, 2, 1]]


def test_a_graph_of_loops_alone_has_no_edges():
    assert case_of(np.array([[2, 2], [2, 2]])).edges.shape == (2, 0)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat"])
def test_both_forms_of_pyg_and_ours_have_one_loss(model):
    pytest.importorskip("torch_geometric")
    from torch_geometric.utils import to_torch_csr_tensor

    def losses(edges):
        layers, ours = (two_layers(model, 6, 8, 3) for _ in range(2))
        gg.accelerate(ours)
        matrix = to_torch_csr_tensor(edges.flip(0), size=(5, 5))
        pairs = (layers, edges), (layers, matrix), (ours, edges)
        return [float(step_of(net, x, graph, y)()) for net, graph in pairs]

    case = case_of(EDGES)
    x, y = torch.from_numpy(case.x), torch.from_numpy(case.y)
    one, csr, ours = losses(torch.from_numpy(case.edges))
    assert csr == pytest.approx(one, rel=1e-6)
    assert ours == pytest.approx(one, rel=1e-6)
    one, csr, ours = losses(torch.from_numpy(EDGES))
    assert abs(csr - one) > 1e-4  # as they came, PyG's two forms are two networks
    assert ours == pytest.approx(one, rel=1e-6)
