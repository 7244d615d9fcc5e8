# SPDX-License-Identifier: Apache-2.0
"""What a graph can be made of, what it refuses, and what its matrices are."""

import types

import pytest
import torch
from graph_cases import dense_matrix, random_edges

from gossamer.errors import InputError
from gossamer.graph import Graph

EDGES = random_edges(30, 120)


def dense_of(graph, **asked):
    """The matrix of a graph as the product with the identity gives it."""
    return graph.matrix(**asked)(torch.eye(graph.num_sources)).double()


def test_all_sources_give_the_same_graph():
    expected = dense_matrix(EDGES, 30)
    sparse = expected.float().to_sparse_coo()
    starts = torch.cat([torch.zeros(1), EDGES[1].bincount(minlength=30).cumsum(0)]).long()
    by_target = EDGES[:, EDGES[1].argsort(stable=True)]
    data = types.SimpleNamespace(edge_index=EDGES, edge_weight=None, num_nodes=30)
    matrix = types.SimpleNamespace(
        shape=(30, 30), indptr=starts.numpy(), indices=by_target[0].numpy()
    )
    matrix.data, matrix.tocsr = torch.ones(120).numpy(), lambda: matrix
    graphs = [
        Graph.of(sparse),
        Graph.of(EDGES, num_nodes=30),
        Graph.of((EDGES[0].tolist(), EDGES[1].numpy()), num_nodes=30),
        Graph.of(data),
        Graph.of(matrix),
        Graph.from_csr(starts, by_target[0]),
    ]
    for graph in graphs:
        torch.testing.assert_close(dense_of(graph), expected)
    assert Graph.of(graphs[0]) is graphs[0]


def test_scipy_and_pyg_objects():
    scipy = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    matrix = scipy.coo_matrix((torch.ones(120).numpy(), (EDGES[1], EDGES[0])), shape=(30, 30))
    torch.testing.assert_close(dense_of(Graph.of(matrix)), dense_matrix(EDGES, 30))


def test_matrices_of_a_weighted_graph():
    weight = torch.rand(120) + 0.1
    graph = Graph.of(EDGES, weight, num_nodes=30)
    a = dense_matrix(EDGES, 30, weight)
    torch.testing.assert_close(dense_of(graph), a, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(dense_of(graph, norm="sum"), dense_matrix(EDGES, 30))
    counts = dense_matrix(EDGES, 30).sum(1, keepdim=True).clamp_min(1)
    torch.testing.assert_close(
        dense_of(graph, norm="mean"), dense_matrix(EDGES, 30) / counts, rtol=1e-6, atol=1e-6
    )
    replaced = a - torch.diag(a.diag()) + 2 * torch.eye(30).double()
    torch.testing.assert_close(
        dense_of(graph, loops="replace", fill=2.0), replaced, rtol=1e-6, atol=1e-6
    )
    assert graph.matrix("gcn") is graph.matrix("gcn")


def test_bipartite_graphs():
    edges = torch.tensor([[0, 4, 4], [1, 0, 1]])
    graph = Graph.of(edges, num_nodes=(5, 2))
    assert (graph.num_sources, graph.num_targets) == (5, 2)
    assert dense_of(graph).tolist() == [[0, 0, 0, 0, 1], [1, 0, 0, 0, 1]]
    with pytest.raises(InputError, match="'gcn' needs as many sources as targets, got 5 and 2"):
        graph.matrix("gcn")
    with pytest.raises(InputError, match="a loop needs a node"):
        graph.matrix("none", loops="fill")


@pytest.mark.parametrize("nodes", [0, 1, 3])
def test_graphs_without_edges(nodes):
    graph = Graph.of(torch.zeros(2, 0, dtype=torch.int64), num_nodes=nodes)
    assert graph.num_edges == 0
    assert torch.equal(dense_of(graph, norm="gcn", loops="fill"), torch.eye(nodes).double())
    assert dense_of(graph).abs().sum() == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Graph.of(torch.tensor([[0], [7]]), num_nodes=5), "edge 0 has target 7.*0 to 4"),
        (lambda: Graph.of(torch.tensor([[-1], [1]]), num_nodes=5), "edge 0 has source -1"),
        (lambda: Graph.of(EDGES, torch.full((120,), float("nan"))), "weight of edge 0 is nan"),
        (lambda: Graph.of(EDGES, torch.ones(3)), "expected 120 weights of edges, got 3"),
        (lambda: Graph.of(torch.ones(3, 4)), r"expected edge_index \[2, E\], got \[3, 4\]"),
        (lambda: Graph.of(torch.ones(2, 4)), "nodes are whole numbers"),
        (lambda: Graph.of(EDGES, num_nodes=2**31), "do not fit 32-bit indices"),
        (lambda: Graph.of(EDGES, num_nodes=-1), "must not be negative"),
        (lambda: Graph.of(EDGES, order="random"), "unknown order 'random'"),
        (lambda: Graph.of("cora"), "cannot read a str"),
        (lambda: Graph.of(([0, 1], [1])), "as many sources as targets"),
        (lambda: Graph.from_csr([0, 2], [0]), "must begin with 0"),
        (lambda: Graph.of(types.SimpleNamespace(edge_types=["a"])), "heterogeneous"),
        (lambda: Graph.of(EDGES).matrix("max"), "unknown normalisation 'max'"),
        (lambda: Graph.of(EDGES).matrix("gcn", loops="some"), "unknown loops 'some'"),
    ],
)
def test_bad_graphs_are_told(make, message):
    with pytest.raises(InputError, match=message):
        make()
