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

from gossamer.formats.bits import pack_bits, unpack_bits
from gossamer.ops.engines.encoder import EncoderLayer, KeptLinear

# Columns of a block of the kernel at low density, see native/src/avx512/encoder.cpp.
_BLOCK = 128


@dataclass(frozen=True)
class Reordered:
    """Layers in their new order, and the rows of sums that `down` moves, before and after."""

    layers: list[EncoderLayer]
    moved_before: int
    moved_after: int


def reorder_neurons(layers: Sequence[EncoderLayer]) -> Reordered:
    """Sort the neurons of every layer by the weights that `down` keeps of them."""
    new, before, after = [], 0, 0
    for layer in layers:
        down_DN = unpack_bits(layer.down.mask_bits, layer.down.shape[1])
        order_N = down_DN.sum(dim=0).argsort(descending=True, stable=True)
        before += moved_rows(down_DN)
        after += moved_rows(down_DN[:, order_N])
        new.append(
            replace(layer, up=_rows(layer.up, order_N), down=_columns(layer.down, down_DN, order_N))
        )
    return Reordered(new, before, after)


def moved_rows(mask_DN: torch.Tensor, block: int = _BLOCK) -> int:
    """Rows of sums loaded and stored, once for every block of columns in which a row keeps any."""
    return sum(int(part.any(dim=1).sum()) for part in torch.split(mask_DN, block, dim=1))


def _rows(linear: KeptLinear, order_N: torch.Tensor) -> KeptLinear:
    mask_ND = unpack_bits(linear.mask_bits, linear.shape[1])
    weight_ND = _dense(linear, mask_ND)[order_N]
    bias = None if linear.bias is None else linear.bias[order_N]
    mask_ND = mask_ND[order_N]
    return KeptLinear(weight_ND[mask_ND], pack_bits(mask_ND), linear.shape, bias)


def _columns(linear: KeptLinear, mask_DN: torch.Tensor, order_N: torch.Tensor) -> KeptLinear:
    weight_DN, mask_DN = _dense(linear, mask_DN)[:, order_N], mask_DN[:, order_N]
    return KeptLinear(weight_DN[mask_DN], pack_bits(mask_DN), linear.shape, linear.bias)


def _dense(linear: KeptLinear, mask: torch.Tensor) -> torch.Tensor:
    weight = torch.zeros(linear.shape)
    weight[mask] = linear.values
    return weight
