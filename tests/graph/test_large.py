# SPDX-License-Identifier: Apache-2.0
"""Batches of large graphs, inference over all nodes, and many graphs as one."""

import pytest
import torch
import torch.nn.functional as F
from graph_cases import random_edges

from gossamer.errors import InputError
from gossamer.graph import GCN, SAGE, Graph
from gossamer.graph.large import NeighbourBatches, infer, join

EDGES = random_edges(60, 600)
GRAPH = Graph.of(EDGES, num_nodes=60)


def test_a_batch_is_a_function_of_its_number():
    first, second = (NeighbourBatches(GRAPH, [3, 2], 16, seed=5) for _ in range(2))
    assert len(first) == 4
    late = second[3]  # drawn alone
    for number, batch in enumerate(first):
        if number == 3:
            assert torch.equal(batch.nodes, late.nodes)
            assert torch.equal(
                batch.graph.edges.by_target.columns, late.graph.edges.by_target.columns
            )
    other = NeighbourBatches(GRAPH, [3, 2], 16, seed=6)[3]
    assert not torch.equal(other.nodes[:12], late.nodes[:12])
    own = torch.cat([batch.nodes[: batch.num_own] for batch in first])
    assert sorted(own.tolist()) == list(range(60))
    assert not torch.equal(first[4].nodes[:16], first[0].nodes[:16])  # the next epoch


def test_drawn_edges_are_edges_and_few_enough():
    known = set(zip(*EDGES.tolist(), strict=True))
    for batch in NeighbourBatches(GRAPH, [3, 2], 16):
        rows = batch.graph.edges.by_target
        sources, targets = batch.nodes[rows.columns.long()], batch.nodes[rows.row_of_edge]
        assert set(zip(sources.tolist(), targets.tolist(), strict=True)) <= known
        assert int(rows.starts.diff().max()) <= 3
        assert len(set(batch.nodes.tolist())) == len(batch.nodes)


def test_a_batch_with_all_neighbours_computes_what_the_whole_graph_does():
    torch.manual_seed(0)
    layers = SAGE(8, 6), SAGE(6, 3)
    x = torch.randn(60, 8)
    whole = layers[1](layers[0](x, GRAPH).relu(), GRAPH)
    for batch in NeighbourBatches(GRAPH, [1000, 1000], 7):
        part = layers[1](layers[0](x[batch.nodes], batch.graph).relu(), batch.graph)
        own = batch.nodes[: batch.num_own]
        torch.testing.assert_close(part[: batch.num_own], whole[own])


def test_inference_layer_by_layer_equals_the_model():
    torch.manual_seed(0)
    first, second, x = GCN(8, 6), GCN(6, 3), torch.randn(60, 8)
    dropout = torch.nn.Dropout(0.5)
    expected = second(F.relu(first(x, GRAPH)), GRAPH)
    found = infer([first, dropout, F.relu, second], x, EDGES, rows_at_once=7)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    assert dropout.training


def test_joined_graphs_compute_like_single_ones():
    torch.manual_seed(0)
    layer = GCN(4, 3)
    weights = [None, torch.rand(30), None]
    graphs = [
        Graph.of(random_edges(nodes, 30 if nodes > 1 else 0, seed=nodes), w, num_nodes=nodes)
        for nodes, w in zip((9, 12, 1), weights, strict=True)
    ]
    features = [torch.randn(graph.num_targets, 4) for graph in graphs]
    joined = join(graphs)
    assert joined.owner.tolist() == [0] * 9 + [1] * 12 + [2]
    expected = torch.cat([layer(x, g) for x, g in zip(features, graphs, strict=True)])
    torch.testing.assert_close(layer(torch.cat(features), joined.graph), expected)
    assert join([]).graph.num_targets == 0


def test_wrong_settings_are_told():
    with pytest.raises(InputError, match="must be positive"):
        NeighbourBatches(GRAPH, [0], 4)
    with pytest.raises(InputError, match="order='given'"):
        NeighbourBatches(Graph.of(EDGES, num_nodes=60, order="rcm"), [3], 4)
    with pytest.raises(InputError, match="rows_at_once"):
        infer([], torch.zeros(60, 1), GRAPH, rows_at_once=0)
