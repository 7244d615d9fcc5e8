# SPDX-License-Identifier: Apache-2.0
"""Neurons of feed-forward blocks in another order, where the packed encoder then runs faster.

The inner neurons of a block may stand in any order: rows of `up` and columns of `down` move
together, and nothing else knows them. A kernel goes through `down` in blocks of columns and loads
and stores a row of sums for every block in which that row keeps a weight. With neurons sorted by
how many weights `down` keeps of them, the last blocks are nearly empty and most rows skip them.
Masks that are even over the neurons have nothing to gain.

Legend: N neurons, D features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gossamer.formats import SparseMatrix
from gossamer.ops.engines import EncoderBlock, Product

# Columns of a block of the kernel at low density, see native/src/avx512/encoder.cpp.
_BLOCK = 128


@dataclass(frozen=True)
class Reordered:
    """Layers in their new order, and the rows of sums that `down` moves, before and after."""

    layers: list[EncoderBlock]
    moved_before: int
    moved_after: int


def reorder_neurons(layers: Sequence[EncoderBlock]) -> Reordered:
    """Sort the neurons of every layer by the weights that `down` keeps of them."""
    new, before, after = [], 0, 0
    for layer in layers:
        down_DN = layer.down.matrix.mask()
        order_N = down_DN.sum(dim=0).argsort(descending=True, stable=True)
        before += moved_rows(down_DN)
        after += moved_rows(down_DN[:, order_N])
        new.append(replace(layer, up=_rows(layer.up, order_N), down=_columns(layer.down, order_N)))
    return Reordered(new, before, after)


def moved_rows(mask_DN: torch.Tensor, block: int = _BLOCK) -> int:
    """Rows of sums loaded and stored, once for every block of columns in which a row keeps any."""
    return sum(int(part.any(dim=1).sum()) for part in torch.split(mask_DN, block, dim=1))


def _rows(linear: Product, order_N: torch.Tensor) -> Product:
    weight_ND, mask_ND = linear.matrix.dense()[order_N], linear.matrix.mask()[order_N]
    bias = None if linear.bias is None else linear.bias[order_N]
    return Product(SparseMatrix.from_dense(weight_ND, mask_ND), bias)


def _columns(linear: Product, order_N: torch.Tensor) -> Product:
    weight_DN, mask_DN = linear.matrix.dense()[:, order_N], linear.matrix.mask()[:, order_N]
    return Product(SparseMatrix.from_dense(weight_DN, mask_DN), linear.bias)
