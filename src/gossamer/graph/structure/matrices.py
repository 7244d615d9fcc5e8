# SPDX-License-Identifier: Apache-2.0
"""Matrices that layers multiply features with: edges, their weights and a normalisation.

none   A                      as it is, weights included
sum    ones where edges are   weights left out
mean   D^-1 ones              each target takes the mean of its edges
gcn    D^-1/2 A D^-1/2        D = sum of the weights that reach a node
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.errors import InputError
from gossamer.ops.spmm import EdgeMatrix, Edges, spmm

NORMS = ("none", "sum", "mean", "gcn")


class Propagation(NamedTuple):
    """A matrix and, where weights of edges learn, their values in this forward pass."""

    matrix: EdgeMatrix
    values: Tensor | None = None

    @property
    def weights(self) -> Tensor:
        """What each edge multiplies by, as edges lie."""
        if self.values is not None:
            return self.values
        ones = self.matrix.edges.num_edges
        return torch.ones(ones) if self.matrix.values is None else self.matrix.values

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`A x + bias`."""
        return spmm(x, self.matrix, self.values, bias=bias)


def normalised(edges: Edges, weight: Tensor | None, norm: str) -> Tensor | None:
    """Values of a normalised matrix as edges lie, differentiable; None = ones.

    Args:
        edges: of the matrix.
        weight: [E] as edges lie; None = ones.
        norm: one of `NORMS`.
    """
    if norm not in NORMS:
        raise InputError(f"graph: unknown normalisation {norm!r}; expected {', '.join(NORMS)}.")
    if norm == "none":
        return weight
    if norm == "sum":
        return None
    rows = edges.by_target
    if norm == "mean":
        degrees = _counts(edges).clamp_min_(1.0)
        return degrees.reciprocal_().index_select(0, rows.row_of_edge)
    if edges.num_sources != edges.num_targets:
        raise InputError(
            f"graph: the normalisation 'gcn' needs as many sources as targets, got"
            f" {edges.num_sources} and {edges.num_targets}. Use 'mean' on a bipartite graph."
        )
    targets, sources = rows.row_of_edge, rows.columns
    if weight is None:
        degrees = _counts(edges)
    else:
        degrees = weight.new_zeros(edges.num_targets).index_add(0, targets, weight)
    reached = degrees > 0  # others are divided by nothing, as no edge of theirs counts
    roots = torch.where(reached, degrees, 1.0).rsqrt() * reached
    values = roots.index_select(0, targets) * roots.index_select(0, sources)
    return values if weight is None else values * weight


def _counts(edges: Edges) -> Tensor:
    """How many edges each target has, float32."""
    rows = edges.by_target
    counts = rows.starts.diff().float()
    if rows.row_ids is None:
        return counts
    return torch.empty_like(counts).index_copy_(0, rows.row_ids.long(), counts)
