# SPDX-License-Identifier: Apache-2.0
"""Features that are mostly zeros, as bags of words are: A (X W) with X as a sparse matrix.

The product with W then costs as much as X has numbers, forward and backward, and nothing else of
the layer changes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.graph.orders.choice import costs_of
from gossamer.graph.structure import Propagation
from gossamer.ops.spmm import EdgeMatrix, EdgeRows, Edges, spmm
from gossamer.ops.timing import contest
from gossamer.settings import tuning_enabled

# Denser features are not tried; below the second one they are taken unmeasured.
_DENSEST = 0.15
_SPARSE_BY_RULE = 0.05


def as_matrix(x: Tensor) -> EdgeMatrix:
    """Dense or sparse features [N, a] as a matrix that multiplies weights."""
    if x.layout is torch.sparse_csr:
        starts, columns, values = x.crow_indices(), x.col_indices(), x.values()
    elif x.layout is torch.strided:
        is_kept = x != 0
        columns, values = is_kept.nonzero()[:, 1], x[is_kept]
        starts = F.pad(is_kept.sum(1).cumsum(0), (1, 0))
    else:
        entries = x.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        rows, columns = entries.indices()
        values, starts = (
            entries.values(),
            F.pad(rows.bincount(minlength=x.shape[0]).cumsum(0), (1, 0)),
        )
    made = EdgeRows(starts.long().contiguous(), columns.int().contiguous(), x.shape[1])
    return EdgeMatrix(Edges(made), values.float().contiguous())


def is_worth_it(
    x: Tensor, weight: Tensor, propagation: Propagation | None = None, *, measures: bool = True
) -> EdgeMatrix | None:
    """The matrix of x if a step with it is faster than one with a dense product; None if not.

    Args:
        x: features.
        weight: what they are multiplied with.
        propagation: the graph, if the dense product is one with A x, which is there already.
        measures: time both; else the share of zeros decides.
    """
    if x.numel() == 0:
        return None
    density = float(torch.count_nonzero(x)) / x.numel()
    if density > _DENSEST:
        return None
    matrix = as_matrix(x)
    if not (measures and tuning_enabled()):
        return matrix if density < _SPARSE_BY_RULE else None
    turned = weight.detach().t().contiguous()
    with torch.no_grad():
        dense, sparse = contest(
            lambda: F.linear(x, weight), lambda: spmm(turned, matrix), budget_seconds=0.01
        ).us
    # Forward and backward: A x needs no product with the graph any more, the other one needs two.
    graph = 0.0 if propagation is None else costs_of(propagation).of(propagation, weight.shape[0])
    return matrix if sparse + graph < dense else None
