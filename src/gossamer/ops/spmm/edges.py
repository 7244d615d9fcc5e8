# SPDX-License-Identifier: Apache-2.0
"""The edges of a graph in both directions, as kernels read them.

Edges lie by target, and by source for the backward pass. What belongs to edges (weights, attention)
is stored once, by target; the other direction finds it by `places`. Rows may lie in any order
(`row_ids`): neighbours that share sources are then computed one after the other and find them in
the cache, and no feature is moved.

Legend: E edges, R rows.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.errors import InputError
from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.calls import Handles
from gossamer.ops.kernels import active_kernels

_WHERE = "graph"
MOST = 2**31 - 1
_ROWS_LOOKED_AT = 64


@dataclass(frozen=True, eq=False)
class EdgeRows:
    """One direction: the edges of each row lie together.

    Attributes:
        starts: int64 [R + 1].
        columns: int32 [E].
        num_columns: columns are below it.
        row_ids: int32 [R], which row lies there; None = they lie in order.
        places: int32 [E], where an edge lies in the other direction; None = here.
    """

    starts: Tensor
    columns: Tensor
    num_columns: int
    row_ids: Tensor | None = None
    places: Tensor | None = None

    @classmethod
    def of(
        cls,
        sources: Tensor,
        targets: Tensor,
        num_sources: int,
        num_targets: int,
        row_order: Tensor | None = None,
    ) -> tuple["EdgeRows", Tensor]:
        """Edges by target, in the order they are given, and the number of each in that order.

        Args:
            sources: int64 [E].
            targets: int64 [E].
            num_sources: sources are below it.
            num_targets: targets are below it.
            row_order: int32, targets in the order in which they shall lie.

        Raises:
            InputError: an edge leads to a node that does not exist.
        """
        num_edges = sources.shape[0]
        for what, count in (("nodes", max(num_sources, num_targets)), ("edges", num_edges)):
            if count > MOST:
                raise InputError(
                    f"graph: {count} {what} do not fit 32-bit indices, which end at {MOST}. Work on"
                    " parts of the graph."
                )
        sources, targets = sources.contiguous(), targets.contiguous()
        starts = torch.empty(num_targets + 1, dtype=torch.int64)
        columns = torch.empty(num_edges, dtype=torch.int32)
        numbers = torch.empty(num_edges, dtype=torch.int32)
        arrays = (
            address(row_order, _WHERE),
            *(address(a, _WHERE) for a in (starts, columns, numbers)),
        )
        given = address(sources, _WHERE), address(targets, _WHERE)
        if not _native.graph_make_rows(*given, num_edges, num_sources, num_targets, *arrays):
            raise InputError(_wrong_node(sources, targets, num_sources, num_targets))
        return cls(starts, columns, num_sources, row_order), numbers

    @property
    def num_rows(self) -> int:
        """R."""
        return self.starts.shape[0] - 1

    @functools.cached_property
    def native(self) -> _native.EdgeRows:
        """What kernels take; it has been checked."""
        return _native.EdgeRows(
            self.num_rows,
            self.num_columns,
            self.columns.shape[0],
            address(self.starts, _WHERE),
            address(self.columns, _WHERE),
            address(self.row_ids, _WHERE),
            address(self.places, _WHERE),
        )

    def sample(self, rows: Tensor, fanout: int, seed: int) -> tuple[Tensor, Tensor]:
        """At most `fanout` edges of each of some rows, drawn without repetition.

        What is drawn for a row depends on seed and row alone.

        Returns:
            Places of edges, int64, row after row; and how many each row has, int64.
        """
        rows = rows.contiguous()
        degrees = (self.starts[rows + 1] - self.starts[rows]).clamp_max(fanout)
        # Rows are written one after the other; the last one may need room for a whole fanout.
        places = torch.empty(int(degrees.sum()) + fanout, dtype=torch.int64)
        counts = torch.empty_like(rows)
        total = _native.graph_sample(
            self.native,
            address(rows, _WHERE),
            rows.shape[0],
            fanout,
            seed,
            address(places, _WHERE),
            address(counts, _WHERE),
        )
        return places[:total], counts

    @functools.cached_property
    def row_of_edge(self) -> Tensor:
        """The row of each edge, int64 [E]."""
        counts = self.starts.diff()
        rows = (
            torch.arange(self.num_rows, dtype=torch.int64)
            if self.row_ids is None
            else self.row_ids.long()
        )
        return rows.repeat_interleave(counts, output_size=self.columns.shape[0])


def _wrong_node(sources: Tensor, targets: Tensor, num_sources: int, num_targets: int) -> str:
    for what, nodes, count in (("source", sources, num_sources), ("target", targets, num_targets)):
        wrong = ((nodes < 0) | (nodes >= count)).nonzero().flatten()
        if len(wrong):
            edge = int(wrong[0])
            return (
                f"graph: edge {edge} has {what} {int(nodes[edge])}, but there are {count} such"
                f" nodes, 0 to {count - 1}. Correct the edge, or pass a larger num_nodes."
            )
    return "graph: an edge leads to a node that does not exist."


class Edges:
    """Both directions of a graph.

    Args:
        by_target: whose rows are targets.
        numbers: int32 [E], which of the edges as they were given lies at each place; None = the
            order is the same.
    """

    def __init__(self, by_target: EdgeRows, numbers: Tensor | None = None) -> None:
        self.by_target = by_target
        self.numbers = numbers

    @property
    def num_edges(self) -> int:
        """E."""
        return self.by_target.columns.shape[0]

    @property
    def num_targets(self) -> int:
        """Nodes that edges lead to."""
        return self.by_target.num_rows

    @property
    def num_sources(self) -> int:
        """Nodes that edges come from."""
        return self.by_target.num_columns

    @functools.cached_property
    def by_source(self) -> EdgeRows:
        """The other direction, made when it is first needed; its places are those by target."""
        # Sources lie in the order of targets, if there are as many.
        order = self.by_target.row_ids if self.num_sources == self.num_targets else None
        rows, places = EdgeRows.of(
            self.by_target.row_of_edge,
            self.by_target.columns.long(),
            self.num_targets,
            self.num_sources,
            order,
        )
        return EdgeRows(rows.starts, rows.columns, rows.num_columns, order, places)

    @property
    def endpoints(self) -> tuple[Tensor, Tensor]:
        """Target and source of every edge as they lie, int64."""
        return self.by_target.row_of_edge, self.by_target.columns.long()

    def rows(self, *, transposed: bool) -> EdgeRows:
        """One of the directions."""
        return self.by_source if transposed else self.by_target

    def cuthill_mckee(self) -> Tensor:
        """Targets in reverse Cuthill-McKee order, int32; for as many sources as targets."""
        order = torch.empty(self.num_targets, dtype=torch.int32)
        _native.graph_rcm(self.by_target.native, self.by_source.native, address(order, _WHERE))
        return order

    def ordered(self, values: Tensor) -> Tensor:
        """What belongs to edges as they were given, as they lie."""
        return values if self.numbers is None else values.index_select(0, self.numbers)


class EdgeMatrix:
    """Edges with weights that stay: A [targets, sources].

    Args:
        edges: where it is not zero; several edges between two nodes are added.
        values: float32 [E] as edges lie; None = ones.
    """

    def __init__(self, edges: Edges, values: Tensor | None = None) -> None:
        self.edges = edges
        self.values = values
        self.number = MATRICES.add(self)

    @classmethod
    def squeezed(cls, x: Tensor, most: float = 1.0) -> "EdgeMatrix | None":
        """Dense float32 features [N, F] without their zeros; None if more than a share stay."""
        x = x.detach().contiguous()
        # Dense features are told by a few rows of them: the others need not be read.
        some = x[:: max(x.shape[0] // _ROWS_LOOKED_AT, 1)]
        if int(torch.count_nonzero(some)) > 2 * most * some.numel():
            return None
        sizes, kernels = (address(x, _WHERE), *x.shape), active_kernels()
        starts = torch.empty(x.shape[0] + 1, dtype=torch.int64)
        count = _native.graph_count(*sizes, address(starts, _WHERE), kernels)
        if count > most * x.numel() or count > MOST:
            return None
        columns = torch.empty(count, dtype=torch.int32)
        values = torch.empty(count)
        if count:
            arrays = (address(t, _WHERE) for t in (starts, columns, values))
            _native.graph_squeeze(*sizes, *arrays, kernels)
        return cls(Edges(EdgeRows(starts, columns, x.shape[1])), values)

    @functools.cached_property
    def values_by_source(self) -> Tensor | None:
        """The values as edges lie in the other direction."""
        places = self.edges.by_source.places
        if self.values is None or places is None:
            return self.values
        return self.values.index_select(0, places)

    @functools.cached_property
    def plain_by_source(self) -> _native.EdgeRows:
        """The other direction without places, for `values_by_source`."""
        rows = self.edges.by_source
        self._kept = EdgeRows(rows.starts, rows.columns, rows.num_columns, rows.row_ids)
        return self._kept.native


MATRICES: Handles[EdgeMatrix] = Handles("graph product")
