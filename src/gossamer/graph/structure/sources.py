# SPDX-License-Identifier: Apache-2.0
"""What other libraries call a graph, read as lists of sources and targets.

Read are: `edge_index` [2, E], pairs (sources, targets), sparse tensors and scipy matrices
[targets, sources] (the `adj_t` of PyG), and objects with an `edge_index` such as PyG's `Data`.
Classes are known by what they have: none of these libraries is imported.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import InputError


class EdgeList(NamedTuple):
    """Edges as they were given; counts are None where the source does not tell."""

    sources: Tensor
    targets: Tensor
    weight: Tensor | None
    num_sources: int | None
    num_targets: int | None


def read_edges(source: Any) -> EdgeList:
    """The edges of anything that is a graph."""
    if isinstance(source, Tensor):
        return _from_tensor(source)
    if isinstance(source, tuple | list) and len(source) == 2:
        sources, targets = (_nodes(part) for part in source)
        if sources.shape != targets.shape or sources.ndim != 1:
            raise InputError(
                f"graph: a pair must hold as many sources as targets, got {list(sources.shape)} and"
                f" {list(targets.shape)}."
            )
        return EdgeList(sources, targets, None, None, None)
    if hasattr(source, "edge_types") or len(getattr(source, "canonical_etypes", ())) > 1:
        raise InputError(
            "graph: this graph is heterogeneous (several kinds of nodes or edges), which is not"
            " supported. Take one kind, for example data[kind].edge_index."
        )
    if hasattr(source, "tocsr"):
        return _from_scipy(source.tocsr())
    if getattr(source, "edge_index", None) is not None:
        return _from_data(source)
    if hasattr(source, "adj_t"):
        return read_edges(source.adj_t)
    if hasattr(source, "edges") and hasattr(source, "num_nodes"):  # DGL
        sources, targets = source.edges()
        count = int(source.num_nodes())
        return EdgeList(_nodes(sources), _nodes(targets), None, count, count)
    raise InputError(
        f"graph: cannot read a {type(source).__name__}. Pass edge_index [2, E], a pair (sources,"
        " targets), a sparse matrix [targets, sources], or an object with edge_index."
    )


def _nodes(values: Any) -> Tensor:
    nodes = torch.as_tensor(np.asarray(values) if not isinstance(values, Tensor) else values)
    if nodes.is_floating_point() or nodes.is_complex() or nodes.dtype is torch.bool:
        raise InputError(f"graph: nodes are whole numbers, got {nodes.dtype}.")
    return nodes.cpu().to(torch.int64)


def _from_tensor(source: Tensor) -> EdgeList:
    if source.layout is not torch.strided:
        rows, columns = source.shape
        if source.layout is torch.sparse_csr:
            sources, values = source.col_indices().long(), source.values()
            targets = torch.arange(rows).repeat_interleave(source.crow_indices().long().diff())
        else:
            entries = source.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
            (targets, sources), values = entries.indices(), entries.values()
        weight = values if values.is_floating_point() and bool((values != 1).any()) else None
        return EdgeList(sources, targets, weight, columns, rows)
    if source.ndim != 2 or source.shape[0] != 2:
        raise InputError(f"graph: expected edge_index [2, E], got {list(source.shape)}.")
    sources, targets = _nodes(source)
    return EdgeList(sources, targets, None, None, None)


def _from_scipy(matrix: Any) -> EdgeList:
    rows, columns = matrix.shape
    starts = torch.as_tensor(np.asarray(matrix.indptr, dtype=np.int64))
    sources = torch.as_tensor(np.asarray(matrix.indices, dtype=np.int64))
    targets = torch.arange(rows).repeat_interleave(starts.diff())
    values = np.asarray(matrix.data)
    weight = None if (values == 1).all() else torch.as_tensor(values.astype(np.float32))
    return EdgeList(sources, targets, weight, columns, rows)


def _from_data(data: Any) -> EdgeList:
    found = _from_tensor(torch.as_tensor(data.edge_index))
    weight = getattr(data, "edge_weight", None)
    count = getattr(data, "num_nodes", None)
    count = None if count is None else int(count)
    return EdgeList(found.sources, found.targets, weight, count, count)
