# SPDX-License-Identifier: Apache-2.0
"""Layers that see a node and the sum, mean or maximum of its neighbours: GraphSAGE and GIN."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.errors import InputError
from gossamer.graph.layer import GraphLayer
from gossamer.graph.orders import Detour, OrderChoice, choose
from gossamer.graph.structure import Propagation
from gossamer.nn.layer_weights import plain_weight
from gossamer.ops.calls import is_traced
from gossamer.ops.elementwise import add
from gossamer.ops.spmm import EdgeMatrix, spmm, spmm_max
from gossamer.ops.tall import tall_linear

AGGREGATES = ("mean", "sum", "max")
Features = Tensor | tuple[Tensor, Tensor]


def sides(x: Features) -> tuple[Tensor, Tensor]:
    """Features of sources and of targets; the same unless the graph is bipartite."""
    return x if isinstance(x, tuple) else (x, x)


class SAGE(GraphLayer):
    """`W_l aggregate(neighbours) + b + W_r x` (GraphSAGE, arXiv 1706.02216).

    A mean or a sum is linear, and either order gives the same. A maximum is not: it is taken of the
    features as they come.

    Args:
        in_features: of each node, or (of sources, of targets).
        out_features: of each node.
        aggregate: "mean", "sum" or "max".
        bias: add b.
        root: add `W_r x`.
        normalise: divide each result by its length.
    """

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        aggregate: str = "mean",
        bias: bool = True,
        root: bool = True,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        if aggregate not in AGGREGATES:
            raise InputError(
                f"SAGE: unknown aggregate {aggregate!r}; expected {', '.join(AGGREGATES)}."
            )
        of_sources, of_targets = (
            in_features if isinstance(in_features, tuple) else (in_features, in_features)
        )
        self.lin_l: nn.Module = nn.Linear(of_sources, out_features, bias=bias)
        self.lin_r: nn.Module | None = (
            nn.Linear(of_targets, out_features, bias=False) if root else None
        )
        self.lin: nn.Module | None = None  # a projection before, as PyG's `project`
        self.aggregate, self.normalise = aggregate, normalise

    def forward(self, x: Features, graph: Any, size: object = None) -> Tensor:
        """Features of targets [M, out].

        Args:
            x: [N, in], or (of sources, of targets) for a bipartite graph.
            graph: a `Graph`, or what `Graph.of` takes.
            size: is not needed; PyG passes it.
        """
        sources, targets = sides(x)
        found = self._graph(graph, None, sources.shape[0], targets.shape[0])
        if self.lin is not None:
            sources = F.relu(self.lin(sources))
        if self.aggregate == "max":
            self.choice = OrderChoice("propagate first", "a maximum is not linear: order is fixed")
            y = self.lin_l(spmm_max(sources, found.matrix("sum").matrix))
        else:
            propagation = found.matrix(self.aggregate)
            bias = self.lin_l.bias
            y = self._linear(propagation, sources, self.lin_l, bias)  # type: ignore[arg-type]
        if self.lin_r is not None:
            y = add(y, self._transform(targets, self.lin_r))
        return F.normalize(y, dim=-1) if self.normalise else y


class GIN(GraphLayer):
    """`nn((1 + eps) x + sum of neighbours)` (arXiv 1810.00826).

    If `nn` is a Sequential that begins with an ordinary linear layer, that layer and the sum may
    change places.

    Args:
        nn: what follows, usually two linear layers.
        eps: how much more a node counts than a neighbour.
        train_eps: let it learn.
    """

    eps: Tensor

    def __init__(self, nn: nn.Module, *, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__()
        self.nn = nn
        start = torch.tensor([float(eps)])
        if train_eps:
            self.eps = torch.nn.Parameter(start)
        else:
            self.register_buffer("eps", start)

    def forward(self, x: Features, graph: Any, size: object = None) -> Tensor:
        """Features of targets.

        Args:
            x: [N, in], or (of sources, of targets) for a bipartite graph.
            graph: a `Graph`, or what `Graph.of` takes.
            size: is not needed; PyG passes it.
        """
        sources, targets = sides(x)
        found = self._graph(graph, None, sources.shape[0], targets.shape[0])
        # A node that counts as much as a neighbour is one: a loop, and no pass of its own.
        is_own = sources is targets and self._counts_once(sources)
        propagation = found.matrix("sum", loops="add" if is_own else "keep")
        scale = 1.0 + self.eps

        def add_up(of_sources: Tensor, of_targets: Tensor) -> Tensor:
            y = propagation(of_sources)
            return y if is_own else torch.addcmul(y, of_targets, scale)

        layers = [] if self.nn._forward_hooks or self.nn._forward_pre_hooks else _steps(self.nn)
        weight = plain_weight(layers[0]) if layers else None
        if weight is None:
            self.choice = OrderChoice("propagate first", "no ordinary linear layer comes first")
            return self.nn(add_up(sources, targets))  # type: ignore[no-any-return]
        self.choice = choose(
            propagation,
            weight.shape[1],
            weight.shape[0],
            trains=torch.is_grad_enabled(),
            needs_dx=torch.is_grad_enabled() and sources.requires_grad,
            measures=self.measures,
        )
        if not self.choice.propagates_first:
            h = self._transform(sources, layers[0], with_bias=False)
        elif (features := self._found(propagation, sources, weight)) is not None:
            self.choice = OrderChoice("sparse x", "features are sparse, their sums are not")
            h = spmm(weight.t(), features)
        else:
            return self.nn(add_up(sources, targets))  # type: ignore[no-any-return]
        own = h if sources is targets else tall_linear(targets, weight, measures=self.measures)
        y = add_up(h, own)
        if layers[0].bias is not None:
            y = y + layers[0].bias  # type: ignore[operator]
        for layer in layers[1:]:
            y = layer(y)
        return y

    def _counts_once(self, x: Tensor) -> bool:
        """Whether eps is 0 and stays it."""
        is_fixed = not isinstance(self.eps, nn.Parameter) and not is_traced(x)
        return is_fixed and float(self.eps) == 0.0

    def _found(self, propagation: Propagation, x: Tensor, weight: Tensor) -> EdgeMatrix | None:
        """Sparse features, as they came or where they are worth products with the graph."""
        if x.layout is not torch.strided:
            return self._features(x)
        return self._squeezed(x, weight, Detour(propagation))


def _steps(module: nn.Module) -> list[nn.Module]:
    """Layers that run one after the other; empty where that is not known."""
    return list(module) if type(module) is nn.Sequential else []
