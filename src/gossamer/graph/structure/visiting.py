# SPDX-License-Identifier: Apache-2.0
"""In which order targets are computed, so that those with the same sources follow each other.

Nothing but the order of work changes: rows of edges lie in it, features do not move, and results go
where they belong. A row of features is several cache lines, so that its neighbours in memory bring
nothing; what helps is that it is still in the cache when it is needed again.
"""

import torch
from torch import Tensor

from gossamer.errors import InputError
from gossamer.ops.spmm import EdgeMatrix, EdgeRows, Edges, spmm
from gossamer.ops.timing import contest
from gossamer.settings import tuning_enabled

ORDERS = ("given", "degree", "rcm", "auto")
# Features of the measurement, and bytes they must take: what fits the cache gains nothing.
_WIDTH = 64
_WORTH_BYTES = 4 << 20
# Another order must win by this much: the given one costs nothing to make.
_MARGIN = 0.95


def visiting_order(edges: Edges, order: str) -> tuple[str, Tensor | None]:
    """The name of an order and the targets in it, int32; None = as they are."""
    if order not in ORDERS:
        raise InputError(f"graph: unknown order {order!r}; expected {', '.join(ORDERS)}.")
    square = edges.num_sources == edges.num_targets
    if order == "given" or (order == "rcm" and not square):
        return "given", None
    if order == "degree":
        return order, _by_degree(edges)
    if order == "rcm":
        return order, edges.cuthill_mckee()
    return _fastest(edges, square)


def _by_degree(edges: Edges) -> Tensor:
    return edges.by_target.starts.diff().argsort(descending=True, stable=True).int()


def _fastest(edges: Edges, square: bool) -> tuple[str, Tensor | None]:
    if not tuning_enabled() or edges.num_sources * _WIDTH * 4 < _WORTH_BYTES:
        return "given", None
    orders: dict[str, Tensor | None] = {"given": None, "degree": _by_degree(edges)}
    if square:
        orders["rcm"] = edges.cuthill_mckee()
    x = torch.ones(edges.num_sources, _WIDTH)
    rows, sources = edges.by_target.row_of_edge, edges.by_target.columns.long()
    sizes = edges.num_sources, edges.num_targets
    matrices = [
        EdgeMatrix(Edges(*EdgeRows.of(sources, rows, *sizes, row_order)))
        for row_order in orders.values()
    ]
    times = contest(*[lambda m=m: spmm(x, m) for m in matrices]).us
    best = min(range(len(times)), key=times.__getitem__)
    if times[best] > _MARGIN * times[0]:
        best = 0
    return list(orders.items())[best]
