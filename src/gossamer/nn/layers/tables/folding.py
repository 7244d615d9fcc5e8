# SPDX-License-Identifier: Apache-2.0
"""Rows that were never or rarely seen share a row: the table shrinks, an int32 map says which.

The rows that stay are stored by how often they were seen, so that hot rows lie together.

Legend: V ids, R rows that stay.
"""

from dataclasses import asdict
from typing import Literal, TypeVar

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.tables.base import TableLayer
from gossamer.nn.layers.tables.packed import PackedTable, packed_table
from gossamer.nn.layers.tables.trained import TrainedTable
from gossamer.ops.table import Rows, encode_rows

Shared = Literal["zero", "mean", "hash"]
Layer = TypeVar("Layer", bound=TableLayer)
# Knuth's multiplier: ids that are neighbours get different shared rows.
_HASH = 2654435761


@torch.no_grad()
def fold_rows(
    layer: Layer,
    counts_V: torch.Tensor,
    *,
    min_count: int = 1,
    shared: Shared = "zero",
    num_shared: int = 1,
) -> Layer:
    """The table with one row for all ids that were seen less than `min_count` times.

    Args:
        layer: trained with a shadow, or packed; not changed.
        counts_V: how often each id was seen, [V].
        min_count: ids with fewer occurrences give up their row.
        shared: what they share: a row of zeros, the mean of their rows, or `num_shared` rows by a
            hash of the id, each the mean of its ids.
        num_shared: rows that are shared, for "hash".

    Raises:
        InputError: counts do not fit, the table is folded already, or its codes are being trained.
    """
    rows = layer.rows()
    if rows.row_map is not None:
        raise InputError("fold_rows: this table has a map already.")
    if isinstance(layer, TrainedTable) and rows.is_coded:
        raise InputError("fold_rows: codes that are trained in place keep their rows; pack first.")
    if counts_V.shape != (layer.num_embeddings,):
        raise InputError(
            f"fold_rows: counts must be [{layer.num_embeddings}], got {list(counts_V.shape)}."
        )
    if shared not in ("zero", "mean", "hash") or num_shared < 1:
        raise InputError("fold_rows: shared must be 'zero', 'mean' or 'hash', num_shared positive.")
    groups = num_shared if shared == "hash" else 1
    rare_V = counts_V < min_count
    if layer.padding_idx is not None:
        rare_V[layer.padding_idx] = False
    # Seldom seen ids behind hot ones; equal counts in the order of ids.
    by_count = torch.argsort(counts_V, descending=True, stable=True)
    kept_R = by_count[~rare_V[by_count]]
    rare = rare_V.nonzero().squeeze(1)
    row_map = torch.empty(layer.num_embeddings, dtype=torch.int32)
    row_map[kept_R] = torch.arange(len(kept_R), dtype=torch.int32)
    bucket = (rare * _HASH % 2**32) % groups
    row_map[rare] = (len(kept_R) + bucket).to(torch.int32)
    floats = rows.data if isinstance(layer, TrainedTable) else None
    source = rows.floats() if floats is None else floats
    extra = source.new_zeros(groups if len(rare) else 0, rows.width)
    if len(rare) and shared != "zero":
        extra.index_add_(0, bucket, source.index_select(0, rare))
        extra /= torch.bincount(bucket, minlength=groups).clamp(min=1).unsqueeze(1)
    folded = torch.cat([source.index_select(0, kept_R), extra])
    return _rebuilt(layer, folded, row_map)


def _rebuilt(layer: Layer, folded_RD: torch.Tensor, row_map: torch.Tensor) -> Layer:
    made: TableLayer
    if isinstance(layer, TrainedTable):
        made = type(layer)(
            layer.num_embeddings,
            layer.embedding_dim,
            layer.padding_idx,
            mode=layer.mode,
            include_last_offset=layer.include_last_offset,
            **asdict(layer.quantising),
            num_rows=len(folded_RD),
            device="meta",
        )
        made.row_map = row_map
        made.take(nn.Parameter(folded_RD, requires_grad=layer.weight.requires_grad))
        made.train(layer.training)
    else:
        made = _packed_again(layer, folded_RD, row_map)
    return made  # type: ignore[return-value]


def _packed_again(layer: TableLayer, folded_RD: torch.Tensor, row_map: torch.Tensor) -> PackedTable:
    rounding, width = layer.rounding, layer.embedding_dim
    if rounding is None:
        return packed_table(layer, Rows(folded_RD, width, None, None, row_map))
    scales = layer.rows().scales
    # The scale of the table stays, so that rows that keep their place keep their codes.
    given = None if rounding.by_row or scales is None else float(scales)
    codes, scales = encode_rows(folded_RD, rounding, given)
    return packed_table(layer, Rows(codes, width, rounding, scales, row_map))
