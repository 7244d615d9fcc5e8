# SPDX-License-Identifier: Apache-2.0
"""Many small graphs as one large one without edges between them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.errors import InputError
from gossamer.graph.structure import Graph


class Joined(NamedTuple):
    """One graph of many.

    Attributes:
        graph: nodes of the first graph come first.
        owner: int64 [N], which graph each node is of.
    """

    graph: Graph
    owner: Tensor


def join(graphs: Sequence[Graph]) -> Joined:
    """One graph of many; features are joined with `torch.cat`.

    Weights stay; where only some graphs have them, edges of others weigh 1.
    """
    if any(graph.num_sources != graph.num_targets for graph in graphs):
        raise InputError("join: bipartite graphs cannot be joined.")
    sizes = torch.tensor([graph.num_targets for graph in graphs], dtype=torch.int64)
    starts = sizes.cumsum(0) - sizes
    rows = [graph.edges.by_target for graph in graphs]
    empty = [torch.zeros(0, dtype=torch.int64)]
    pairs = list(zip(rows, starts.tolist(), strict=True))
    sources = torch.cat(empty + [r.columns.long() + start for r, start in pairs])
    targets = torch.cat(empty + [r.row_of_edge + start for r, start in pairs])
    weight = None
    if any(graph.weight is not None for graph in graphs):
        weight = torch.cat(
            [
                torch.ones(graph.num_edges)
                if graph.weight is None
                else graph.edges.ordered(graph.weight)
                for graph in graphs
            ]
        )
    joined = Graph.of((sources, targets), weight, num_nodes=int(sizes.sum()))
    return Joined(joined, torch.arange(len(graphs)).repeat_interleave(sizes))
