# SPDX-License-Identifier: Apache-2.0
"""Random graphs for tests: not symmetric, with loops, repeated edges and nodes without any."""

import torch
from hypothesis import strategies as st


def random_edges(num_nodes, num_edges, seed=0):
    """An edge_index whose first tenth are loops and whose second tenth is repeated."""
    generator = torch.Generator().manual_seed(seed)
    if num_nodes == 0 or num_edges == 0:
        return torch.zeros(2, 0, dtype=torch.int64)
    # The last node gets no edge.
    edges = torch.randint(0, max(num_nodes - 1, 1), (2, num_edges), generator=generator)
    tenth = num_edges // 10
    edges[1, :tenth] = edges[0, :tenth]
    edges[:, tenth : 2 * tenth] = edges[:, 2 * tenth : 3 * tenth]
    return edges


def dense_matrix(edges, num_nodes, weight=None):
    """A [targets, sources] in float64."""
    values = torch.ones(edges.shape[1]).double() if weight is None else weight.double()
    matrix = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    return matrix.index_put((edges[1], edges[0]), values, accumulate=True)


@st.composite
def edge_lists(draw, max_nodes=12):
    """(num_nodes, edge_index), from nothing to several edges between any two nodes."""
    nodes = draw(st.integers(0, max_nodes))
    if nodes == 0:
        return 0, torch.zeros(2, 0, dtype=torch.int64)
    node = st.integers(0, nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=40))
    return nodes, torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous()
