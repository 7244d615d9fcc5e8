# SPDX-License-Identifier: Apache-2.0
"""Layers that go several hops with one weight or none: SGC, APPNP, LightGCN."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.errors import InputError
from gossamer.graph.layer import GraphLayer
from gossamer.graph.orders import OrderChoice

_NOTHING = OrderChoice("propagate only", "there is no weight to change places with")


class SGC(GraphLayer):
    """`S^K x W^T + b` with S the matrix of `GCN` (arXiv 1902.07153).

    Args:
        in_features: of each node.
        out_features: of each node.
        hops: K.
        bias: add b.
        loops: add loops, as in `GCN`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        hops: int = 1,
        *,
        bias: bool = True,
        loops: bool = True,
    ) -> None:
        super().__init__()
        if hops < 1:
            raise InputError(f"SGC: hops must be at least 1, got {hops}.")
        self.lin: nn.Module = nn.Linear(in_features, out_features, bias=bias)
        self.hops, self.loops = hops, loops

    def forward(self, x: Tensor, graph: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Features [N, out]; arguments as those of `GCN`."""
        found = self._graph(graph, edge_weight, x.shape[0], x.shape[0])
        loops = self._loops_for(graph) if self.loops else "keep"
        propagation = found.matrix("gcn", loops=loops)
        bias: Any = self.lin.bias
        return self._linear(propagation, x, self.lin, bias, self.hops)


class APPNP(GraphLayer):
    """`z <- (1 - alpha) S z + alpha x`, K times, from z = x (arXiv 1810.05997).

    Args:
        hops: K.
        alpha: how much of x returns in each hop.
        dropout: of S, while training.
        loops: add loops, as in `GCN`.
    """

    def __init__(
        self, hops: int, alpha: float, *, dropout: float = 0.0, loops: bool = True
    ) -> None:
        super().__init__()
        self.hops, self.alpha, self.dropout, self.loops = hops, alpha, dropout, loops

    def forward(self, x: Tensor, graph: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Features [N, F]; arguments as those of `GCN`."""
        found = self._graph(graph, edge_weight, x.shape[0], x.shape[0])
        loops = self._loops_for(graph) if self.loops else "keep"
        propagation = found.matrix("gcn", loops=loops)
        self.choice = _NOTHING
        z = x
        for _ in range(self.hops):
            step = propagation
            if self.training and self.dropout:
                step = step._replace(values=F.dropout(step.weights, self.dropout))
            z = torch.add(step(z) * (1.0 - self.alpha), x, alpha=self.alpha)
        return z


class LightGCN(GraphLayer):
    """The mean of x and K products with D^-1/2 A D^-1/2, without loops (arXiv 2002.02126).

    Args:
        hops: K.
        combine: "mean" of all, or the "last" one alone (one hop of it is PyG's `LGConv`).
        normalise: False multiplies with the weights as they are.
    """

    def __init__(self, hops: int = 1, *, combine: str = "mean", normalise: bool = True) -> None:
        super().__init__()
        if combine not in ("mean", "last"):
            raise InputError(f"LightGCN: combine must be 'mean' or 'last', got {combine!r}.")
        self.hops, self.combine, self.normalise = hops, combine, normalise

    def forward(self, x: Tensor, graph: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Features [N, F]; arguments as those of `GCN`."""
        found = self._graph(graph, edge_weight, x.shape[0], x.shape[0])
        propagation = found.matrix("gcn" if self.normalise else "none")
        self.choice = _NOTHING
        self._kept.reread(x)
        z = total = x
        for _ in range(self.hops):
            z = propagation(z)
            total = total + z
        return z if self.combine == "last" else total / (self.hops + 1)
