# SPDX-License-Identifier: Apache-2.0
"""Features that are mostly zeros, as bags of words are: A (X W) with X as a sparse matrix.

The product with W then costs as much as X has numbers, forward and backward, and nothing else of
the layer changes. Features that stay are squeezed once (`is_worth_it`); features that are new in
every step, as dropout makes them, in every step (`Squeezing`). Where (A X) W has less work in the
graph, what A (X W) has more of it (`Detour`) is part of the comparison.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.graph.orders.choice import Detour
from gossamer.ops.addresses import direct_address
from gossamer.ops.calls import is_traced
from gossamer.ops.spmm import EdgeMatrix, EdgeRows, Edges, spmm
from gossamer.ops.tall import tall_linear
from gossamer.ops.timing import contest
from gossamer.settings import tuning_enabled

# Denser features are not tried; below the second one they are taken unmeasured.
_DENSEST = 0.15
_SPARSE_BY_RULE = 0.05
# Products with fewer multiplications take microseconds.
_WORTH_SQUEEZING = 1 << 20


def as_matrix(x: Tensor) -> EdgeMatrix:
    """Sparse features [N, a] as a matrix that multiplies weights."""
    if x.layout is torch.sparse_csr:
        starts, columns, values = x.crow_indices(), x.col_indices(), x.values()
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
    x: Tensor, weight: Tensor, detour: Detour | None = None, *, measures: bool = True
) -> EdgeMatrix | None:
    """The matrix of x if a step with it is faster than one with a dense product; None if not.

    Args:
        x: features.
        weight: what they are multiplied with.
        detour: more work in the graph than beside the dense product, if there is any.
        measures: time both; else the share of zeros decides.
    """
    if x.numel() == 0:
        return None
    if x.dtype is not torch.float32:
        return None
    if not (measures and tuning_enabled()):
        return EdgeMatrix.squeezed(x, _SPARSE_BY_RULE)
    matrix = EdgeMatrix.squeezed(x, _DENSEST)
    if matrix is None:
        return None
    turned = weight.detach().t().contiguous()
    with torch.no_grad():
        dense, sparse = contest(
            lambda: F.linear(x, weight), lambda: spmm(turned, matrix), budget_seconds=0.01
        ).us
    passes = _passes()
    return matrix if passes * sparse + _graph_us(detour, weight, passes) < passes * dense else None


class Squeezing:
    """Whether it pays to look for zeros in the features of every step.

    A measurement decides at the first step, and features that turned out to be dense are not looked
    at again. A rule looks at every step's features alone, so that a resumed run does the same.
    """

    def __init__(self) -> None:
        self._pays: dict[tuple[int, int, int, bool], bool] = {}

    def matrix(
        self, x: Tensor, weight: Tensor, detour: Detour | None = None, *, measures: bool
    ) -> EdgeMatrix | None:
        """The matrix of x if a step with it is faster than with a dense product; None if not.

        Args:
            x: features.
            weight: what they are multiplied with.
            detour: more work in the graph than beside the dense product, if there is any.
            measures: time both; else numbers of multiplications decide.
        """
        passes = _passes()
        key = x.shape[1], weight.shape[0], passes, detour is None
        if self._pays.get(key) is False or not _can_squeeze(x, weight):
            return None
        if not (measures and tuning_enabled()):
            share = _share_by_rule(x, weight, detour, passes)
            return EdgeMatrix.squeezed(x, share) if share > 0.0 else None
        found = EdgeMatrix.squeezed(x, _DENSEST)
        if found is None:
            self._pays[key] = False
        elif key not in self._pays:
            self._pays[key] = _is_faster(x, weight.detach(), detour, passes)
        return found if self._pays[key] else None


def _can_squeeze(x: Tensor, weight: Tensor) -> bool:
    return (
        x.dtype is weight.dtype is torch.float32
        and x.ndim == 2
        and not x.requires_grad
        and x.numel() * weight.shape[0] >= _WORTH_SQUEEZING
        and direct_address(x) != 0
        and not torch.is_autocast_enabled("cpu")
        and not is_traced(x)
    )


def _passes() -> int:
    """Forward, and backward if one follows."""
    return 2 if torch.is_grad_enabled() else 1


def _graph_us(detour: Detour | None, weight: Tensor, passes: int) -> float:
    outputs, inputs = weight.shape
    return 0.0 if detour is None else detour.microseconds(inputs, outputs, passes)


def _share_by_rule(x: Tensor, weight: Tensor, detour: Detour | None, passes: int) -> float:
    """How much of x may be other than zero: few sparse multiplications for each dense one."""
    if detour is None:
        return _SPARSE_BY_RULE
    outputs, inputs = weight.shape
    more = detour.multiplications(inputs, outputs, passes)
    return _SPARSE_BY_RULE - more / (passes * x.numel() * outputs)


def _is_faster(x: Tensor, weight: Tensor, detour: Detour | None, passes: int) -> bool:
    """Whether squeezing and sparse products take less time than dense ones."""
    turned, grad = weight.t().contiguous(), x.new_ones(x.shape[0], weight.shape[0])

    def sparse() -> None:
        matrix = EdgeMatrix.squeezed(x, _DENSEST)
        if matrix is not None:
            spmm(turned, matrix)
        if matrix is not None and passes > 1:
            spmm(grad, matrix, transposed=True)

    def dense() -> None:
        for _ in range(passes):  # the gradient of W takes about as long
            tall_linear(x, weight)

    with torch.no_grad():
        ours, theirs = contest(sparse, dense, budget_seconds=0.01).us
    return ours + _graph_us(detour, weight, passes) < theirs
