# SPDX-License-Identifier: Apache-2.0
"""What the layers share: where the graph comes from, and linear products in any order."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.errors import InputError
from gossamer.graph.orders import (
    Detour,
    KeptProducts,
    OrderChoice,
    Squeezing,
    as_matrix,
    choose,
    is_worth_it,
)
from gossamer.graph.structure import Graph, Propagation
from gossamer.nn.layer_weights import plain_weight
from gossamer.ops.results import drop_results
from gossamer.ops.spmm import EdgeMatrix, spmm
from gossamer.ops.tall import tall_linear


class KnownGraphs:
    """Graphs of edge lists that came before, for as long as these live and do not change."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def __deepcopy__(self, memo: object) -> "KnownGraphs":
        return KnownGraphs()

    def __getstate__(self) -> dict[str, object]:
        return {}

    def __setstate__(self, state: object) -> None:
        self._known = {}

    def of(self, source: Any, weight: Tensor | None, num_nodes: tuple[int, int]) -> Graph:
        """The graph of an edge list and its weights."""
        if isinstance(source, Graph):
            return source if weight is None else source.with_weight(weight)
        key = getattr(source, "_version", None), num_nodes
        known = self._known.get(id(source))
        if known is None or known.source() is not source or known.key != key:
            is_sparse = isinstance(source, Tensor) and source.layout is not torch.strided
            graph = Graph.of(source, num_nodes=None if is_sparse else num_nodes)
            if not isinstance(source, Tensor):  # may change unseen
                return graph if weight is None else graph.with_weight(weight)
            forget, at = self._known.pop, id(source)
            known = _Known(weakref.ref(source, lambda _: forget(at, None)), key, graph)
            self._known[at] = known
        return known.weighted(weight)


class _Known:
    """A graph, and the same with the weights that came last."""

    def __init__(self, source: weakref.ref[Any], key: object, graph: Graph) -> None:
        self.source, self.key, self.graph = source, key, graph
        self._weight: Tensor | None = None
        self._version = 0
        self._weighted = graph

    def weighted(self, weight: Tensor | None) -> Graph:
        if weight is None:
            return self.graph
        if weight is not self._weight or weight._version != self._version:
            self._weighted = self.graph.with_weight(weight)
            self._weight, self._version = weight, weight._version
        return self._weighted


class GraphLayer(nn.Module):
    """A layer that is called with features and a graph.

    Attributes:
        choice: the order of the last call, and why; for `gossamer.graph.explain`.
        graphs: graphs of edge lists; layers of one model share it.
        keeps: keep A x, or x as a sparse matrix, while features and graph stay the same.
        measures: time both orders where that may pay; else a rule decides, always alike.
    """

    def __init__(self) -> None:
        super().__init__()
        self.choice: OrderChoice | None = None
        self.graphs = KnownGraphs()
        self.keeps = True
        self.measures = True
        self._kept = KeptProducts()
        self._inputs = KeptProducts()
        self._squeezing = Squeezing()

    def _loops_for(self, graph: Any) -> str:
        """Loops of a normalised matrix. PyG adds them to an adjacency matrix, loops or not."""
        is_sparse = isinstance(graph, Tensor) and graph.layout is not torch.strided
        return "add" if is_sparse else "fill"

    def forget(self) -> None:
        """Drop A x, after a change of features that torch does not count (`x.data`).

        Memory that large results had, and that is kept for the next ones, goes back, too.
        """
        self._kept.forget()
        self._inputs.forget()
        self._squeezing = Squeezing()
        drop_results()

    def _graph(
        self, graph: Any, weight: Tensor | None, num_sources: int, num_targets: int
    ) -> Graph:
        found = self.graphs.of(graph, weight, (num_sources, num_targets))
        if (found.num_sources, found.num_targets) != (num_sources, num_targets):
            raise InputError(
                f"{type(self).__name__}: the graph has {found.num_sources} sources and"
                f" {found.num_targets} targets, the features are of {num_sources} and"
                f" {num_targets} nodes. Pass num_nodes to Graph.of."
            )
        return found

    def _transform(self, x: Tensor, lin: nn.Module, *, with_bias: bool = True) -> Tensor:
        """`lin(x)`, with x as a sparse matrix where that is faster."""
        weight = plain_weight(lin)
        bias: Any = lin.bias if with_bias else None
        if x.layout is not torch.strided:
            return spmm(self._needed(weight).t(), self._features(x), bias=bias)
        if weight is None:
            y: Tensor = lin(x)
            return y
        features = self._squeezed(x, weight)
        if features is not None:
            return spmm(weight.t(), features, bias=bias)
        return tall_linear(x, weight, bias, measures=self.measures)

    def _squeezed(
        self, x: Tensor, weight: Tensor, detour: Detour | None = None
    ) -> EdgeMatrix | None:
        """Features as a sparse matrix if that is faster, kept where they stay; None if not."""
        kept = self._inputs
        if self.keeps and kept.seen(x):
            if not kept.is_decided:
                kept.is_decided = True
                kept.features = is_worth_it(x, weight, detour, measures=self.measures)
            if kept.features is not None:
                return kept.features
        return self._squeezing.matrix(x, weight, detour, measures=self.measures)

    def _features(self, x: Tensor) -> EdgeMatrix:
        """A sparse tensor as a matrix, made once for as long as it does not change."""
        if x.layout is not torch.sparse_csr:
            return as_matrix(x)
        if not self._inputs.seen(x) or self._inputs.features is None:
            self._inputs.features = as_matrix(x)
        return self._inputs.features

    def _needed(self, weight: Tensor | None) -> Tensor:
        if weight is None:
            raise InputError(
                f"{type(self).__name__}: sparse features need an ordinary linear layer, and this"
                " one is masked, compact or watched. Use x.to_dense()."
            )
        return weight

    def _linear(
        self,
        propagation: Propagation,
        x: Tensor,
        lin: nn.Module,
        bias: Tensor | None,
        hops: int = 1,
    ) -> Tensor:
        """`A^hops x W^T + bias` in the order that takes less time; bias may be that of lin."""
        weight = plain_weight(lin)
        if x.layout is not torch.strided:
            return self._sparse_first(
                propagation, self._features(x), weight, bias, hops, "as it came"
            )

        def propagate(features: Tensor, last: Tensor | None = None) -> Tensor:
            for hop in range(hops):
                features = propagation(features, last if hop == hops - 1 else None)
            return features

        trains = torch.is_grad_enabled()
        kept = self._kept
        if self.keeps and kept.seen(x, propagation):
            if not kept.is_decided and weight is not None:
                kept.is_decided = True
                detour = Detour(propagation, hops, is_kept=True)
                kept.features = is_worth_it(x, weight, detour, measures=self.measures)
            if kept.features is not None:
                return self._sparse_first(propagation, kept.features, weight, bias, hops, "found")
            self.choice = OrderChoice("A x kept", "features and graph are those of the call before")
            return self._weigh(lin, weight, kept.product(x, propagate), bias)
        needs_dx = trains and x.requires_grad
        sizes = x.shape[1], int(getattr(lin, "out_features", 0))
        if weight is None and (not sizes[1] or lin.bias is not None):
            self.choice = OrderChoice("propagate first", "its linear layer adds a bias of its own")
        else:
            self.choice = choose(
                propagation,
                *sizes,
                trains=trains,
                needs_dx=needs_dx,
                hops=hops,
                measures=self.measures,
            )
        if weight is not None:
            more = Detour(propagation, hops) if self.choice.propagates_first else None
            found = self._squeezing.matrix(x, weight, more, measures=self.measures)
            if found is not None:
                return self._sparse_first(propagation, found, weight, bias, hops, "in every step")
        if self.choice.propagates_first:
            kept.reread(x)
            return self._weigh(lin, weight, propagate(x), bias)
        return propagate(self._weigh(lin, weight, x, None), bias)

    def _weigh(
        self, lin: nn.Module, weight: Tensor | None, x: Tensor, bias: Tensor | None
    ) -> Tensor:
        if weight is not None:
            return tall_linear(x, weight, bias, measures=self.measures)
        y: Tensor = lin(x)
        return y if bias is None or bias is lin.bias else y + bias

    def _sparse_first(
        self,
        propagation: Propagation,
        features: Any,
        weight: Tensor | None,
        bias: Tensor | None,
        hops: int,
        why: str,
    ) -> Tensor:
        weight = self._needed(weight)
        kept = features.edges.num_edges / max(features.edges.num_targets * weight.shape[1], 1)
        self.choice = OrderChoice("sparse x", f"features are sparse ({kept:.1%} not zero), {why}")
        y = spmm(weight.t(), features)
        for hop in range(hops):
            y = propagation(y, bias if hop == hops - 1 else None)
        return y
