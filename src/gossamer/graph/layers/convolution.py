# SPDX-License-Identifier: Apache-2.0
"""Graph convolution (Kipf and Welling, arXiv 1609.02907)."""

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.graph.layer import GraphLayer


class GCN(GraphLayer):
    """`D^-1/2 (A + I) D^-1/2 x W^T + b`.

    Args:
        in_features: of each node.
        out_features: of each node.
        bias: add b.
        loops: add I, where a node has no loop of its own.
        fill: weight of these loops.
        normalise: False multiplies with the weights as they are.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        loops: bool = True,
        fill: float = 1.0,
        normalise: bool = True,
    ) -> None:
        super().__init__()
        self.lin: nn.Module = nn.Linear(in_features, out_features, bias=False)
        nn.init.xavier_uniform_(self.lin.weight)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.loops, self.fill, self.normalise = loops, fill, normalise

    def forward(self, x: Tensor, graph: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Features [N, out].

        Args:
            x: [N, in]; a sparse tensor if most of it is zero.
            graph: a `Graph`, or what `Graph.of` takes.
            edge_weight: of each edge, if graph is a list of edges.
        """
        found = self._graph(graph, edge_weight, x.shape[0], x.shape[0])
        loops = self._loops_for(graph) if self.loops and self.normalise else "keep"
        norm = "gcn" if self.normalise else "none"
        propagation = found.matrix(norm, loops=loops, fill=self.fill)
        return self._linear(propagation, x, self.lin, self.bias)
