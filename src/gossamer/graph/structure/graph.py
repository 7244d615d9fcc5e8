# SPDX-License-Identifier: Apache-2.0
"""`Graph`: edges from sources to targets, in both directions, checked once.

A graph does not change. Loops, normalisations and orders make new matrices, which it keeps: layers
that ask for the same one share it.
"""

from typing import Any

import torch
from torch import Tensor

from gossamer.errors import InputError
from gossamer.graph.structure.matrices import Propagation, normalised
from gossamer.graph.structure.sources import read_edges
from gossamer.graph.structure.visiting import visiting_order
from gossamer.ops.spmm import EdgeMatrix, EdgeRows, Edges
from gossamer.out_of_memory import names_memory

_ADVICE = "Give a part of it, such as batches of gossamer.graph.large, or free memory."
LOOPS = ("keep", "fill", "replace", "add")


class Graph:
    """Edges from sources to targets; make one with `Graph.of`.

    Args:
        edges: both directions.
        weight: float [E] as edges were given; None = ones.
        visiting: in which order targets lie, for `explain`.
    """

    def __init__(self, edges: Edges, weight: Tensor | None = None, visiting: str = "given") -> None:
        self.edges = edges
        self.weight = weight
        self.visiting = visiting
        self._with_loops: dict[bool, Edges] = {}
        self._matrices: dict[tuple[str, str, float], Propagation] = {}

    @classmethod
    @names_memory("graph", _ADVICE)
    def of(
        cls,
        source: Any,
        weight: Tensor | None = None,
        *,
        num_nodes: int | tuple[int, int] | None = None,
        order: str = "given",
    ) -> "Graph":
        """The graph that something else holds.

        Args:
            source: `edge_index` [2, E] (sources, then targets), a pair of both, a sparse tensor or
                scipy matrix [targets, sources], PyG's `Data`, a graph of DGL with one kind of edge.
            weight: of each edge; it may need gradients.
            num_nodes: or (sources, targets) of a bipartite graph; found from the edges if absent.
            order: in which targets are computed: "given", "degree", "rcm" (reverse Cuthill-McKee),
                or "auto", which measures them. Results come in the order of nodes in any case.

        Raises:
            InputError: an edge leads nowhere, a weight is not a number, or there are too many.
        """
        if isinstance(source, Graph):
            return source
        found = read_edges(source)
        weight = found.weight if weight is None else weight
        num_sources, num_targets = _sizes(found, num_nodes)
        weight = None if weight is None else _checked_weight(weight, found.sources.shape[0])
        edges = _edges(found.sources, found.targets, num_sources, num_targets)
        return cls(edges, weight)._visited(order)

    @classmethod
    def from_csr(
        cls,
        starts: Any,
        sources: Any,
        weight: Tensor | None = None,
        *,
        num_sources: int | None = None,
    ) -> "Graph":
        """Of rows of edges: `sources[starts[i]:starts[i + 1]]` lead to target i."""
        starts, sources = (torch.as_tensor(part).long() for part in (starts, sources))
        rows = starts.shape[0] - 1
        if rows < 0 or starts[0] != 0 or starts[-1] != len(sources) or (starts.diff() < 0).any():
            raise InputError(
                "graph: starts must begin with 0, not decrease, and end with the number of edges."
            )
        targets = torch.arange(rows).repeat_interleave(starts.diff())
        columns = rows if num_sources is None else num_sources
        return cls.of((sources, targets), weight, num_nodes=(columns, rows))

    @property
    def num_sources(self) -> int:
        """Nodes that edges come from."""
        return self.edges.num_sources

    @property
    def num_targets(self) -> int:
        """Nodes that edges lead to."""
        return self.edges.num_targets

    @property
    def num_edges(self) -> int:
        """Edges, several between the same nodes included."""
        return self.edges.num_edges

    def __repr__(self) -> str:
        nodes = (
            f"{self.num_targets} nodes"
            if self.num_sources == self.num_targets
            else f"{self.num_sources} -> {self.num_targets} nodes"
        )
        weights = "" if self.weight is None else ", weights"
        return f"Graph({nodes}, {self.num_edges} edges{weights}, visited as {self.visiting})"

    @names_memory("graph", _ADVICE)
    def matrix(self, norm: str = "none", *, loops: str = "keep", fill: float = 1.0) -> Propagation:
        """What a layer multiplies features with.

        Args:
            norm: "none", "sum", "mean" or "gcn".
            loops: "keep" leaves edges from a node to itself as they are; "fill" adds one of weight
                `fill` where there is none and keeps the weight of others; "replace" takes all
                away and adds one of weight `fill` to every node; "add" adds one to every node,
                beside those that are there.
            fill: weight of a loop that is added.
        """
        if loops not in LOOPS:
            raise InputError(f"graph: unknown loops {loops!r}; expected {', '.join(LOOPS)}.")
        key = norm, loops, fill
        known = self._matrices.get(key)
        if known is not None:
            return known
        edges, weight = self._looped(loops, fill)
        values = normalised(edges, weight, norm)
        if values is not None and values.requires_grad:
            # The values belong to this forward pass; only the edges are kept.
            plain = "edges", loops, 0.0
            if plain not in self._matrices:
                self._matrices[plain] = Propagation(EdgeMatrix(edges))
            return self._matrices[plain]._replace(values=values)
        made = Propagation(EdgeMatrix(edges, None if values is None else values.float()))
        self._matrices[key] = made
        return made

    @property
    def _ordered_weight(self) -> Tensor | None:
        """Made anew where it learns: an autograd graph serves one backward pass."""
        return None if self.weight is None else self.edges.ordered(self.weight)

    def _looped(self, loops: str, fill: float) -> tuple[Edges, Tensor | None]:
        """Edges with loops, and their weights as these edges lie."""
        if loops == "keep":
            return self.edges, self._ordered_weight
        if self.num_sources != self.num_targets:
            raise InputError(
                f"graph: a loop needs a node that is source and target, but there are"
                f" {self.num_sources} sources and {self.num_targets} targets. Switch loops off."
            )
        rows = self.edges.by_target
        targets, sources = rows.row_of_edge, rows.columns.long()
        is_loop = targets == sources
        stays = torch.ones_like(is_loop) if loops == "add" else ~is_loop
        others, adds = stays.nonzero().flatten(), loops == "add"
        if adds not in self._with_loops:
            nodes = torch.arange(self.num_targets)
            self._with_loops[adds] = _edges(
                torch.cat([sources[others], nodes]),
                torch.cat([targets[others], nodes]),
                self.num_sources,
                self.num_targets,
                rows.row_ids,
            )
        looped, weight = self._with_loops[adds], self._ordered_weight
        if weight is None and fill == 1.0:
            return looped, None
        weight = torch.ones(self.num_edges) if weight is None else weight
        on_loops = weight.new_full((self.num_targets,), fill)
        if loops == "fill":
            at = is_loop.nonzero().flatten()
            on_loops = on_loops.index_copy(0, targets[at], weight[at])
        return looped, looped.ordered(torch.cat([weight[others], on_loops]))

    def laid_out(self, features: Tensor, *, loops: bool) -> Tensor:
        """Features of edges [E, D], as the edges of `matrix` lie.

        Args:
            features: one row for each edge, as edges were given.
            loops: with "replace", where each loop has the mean of what reaches its node.
        """
        if features.ndim != 2 or features.shape[0] != self.num_edges:
            raise InputError(
                f"graph: expected features of edges [{self.num_edges}, D], got"
                f" {list(features.shape)}."
            )
        given = self.edges.ordered(features)
        if not loops:
            return given
        rows = self.edges.by_target
        targets = rows.row_of_edge
        others = (targets != rows.columns).nonzero().flatten()
        given, targets = given.index_select(0, others), targets.index_select(0, others)
        sums = given.new_zeros(self.num_targets, given.shape[1]).index_add(0, targets, given)
        counts = targets.bincount(minlength=self.num_targets).clamp_min(1)
        looped, _ = self._looped("replace", 1.0)
        return looped.ordered(torch.cat([given, sums / counts[:, None]]))

    def with_weight(self, weight: Tensor | None) -> "Graph":
        """The same edges with other weights; nothing is sorted again."""
        checked = None if weight is None else _checked_weight(weight, self.num_edges)
        made = Graph(self.edges, checked, self.visiting)
        made._with_loops = self._with_loops
        return made

    def _visited(self, order: str) -> "Graph":
        name, row_order = visiting_order(self.edges, order)
        if row_order is None:
            return self
        rows = self.edges.by_target
        edges = _edges(
            rows.columns.long(), rows.row_of_edge, self.num_sources, self.num_targets, row_order
        )
        if edges.numbers is not None and self.edges.numbers is not None:
            edges.numbers = self.edges.numbers.index_select(0, edges.numbers)
        return Graph(edges, self.weight, name)


def _edges(
    sources: Tensor,
    targets: Tensor,
    num_sources: int,
    num_targets: int,
    row_order: Tensor | None = None,
) -> Edges:
    return Edges(*EdgeRows.of(sources, targets, num_sources, num_targets, row_order))


def _sizes(found: Any, num_nodes: int | tuple[int, int] | None) -> tuple[int, int]:
    if num_nodes is None and found.num_sources is not None:
        return found.num_sources, found.num_targets
    if num_nodes is None:
        highest = [int(nodes.max()) if len(nodes) else -1 for nodes in found[:2]]
        return max(highest) + 1, max(highest) + 1
    sizes = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
    if min(sizes) < 0:
        raise InputError(f"graph: num_nodes must not be negative, got {num_nodes}.")
    return sizes


def _checked_weight(weight: Tensor, num_edges: int) -> Tensor:
    weight = torch.as_tensor(weight).flatten()
    if weight.shape[0] != num_edges:
        raise InputError(f"graph: expected {num_edges} weights of edges, got {weight.shape[0]}.")
    if not weight.is_floating_point():
        weight = weight.float()
    if not torch.isfinite(weight).all():
        edge = int((~torch.isfinite(weight)).nonzero()[0])
        raise InputError(
            f"graph: the weight of edge {edge} is {float(weight[edge])}. Weights must be finite."
        )
    return weight
