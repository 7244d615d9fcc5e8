# SPDX-License-Identifier: Apache-2.0
"""Packs the layers of an encoder for one native call.

Neurons of feed-forward blocks are put in another order where the encoder then runs faster. They may
stand in any order: rows of `up` and columns of `down` move together, and nothing else knows them. A
kernel goes through `down` in blocks of columns and loads and stores a row of sums for every block
in which that row keeps a weight. With neurons sorted by how many weights `down` keeps of them, the
last blocks are nearly empty and most rows skip them. Masks that are even over the neurons have
nothing to gain.

Legend: N neurons or tokens, D features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gossamer import settings
from gossamer.formats import SparseMatrix
from gossamer.ops.engines.encoder import EncoderBlock, PackedEncoder, Product
from gossamer.ops.timing import duel
from gossamer.running.encoder.layers import read_layers

# Tokens of a sequence that orders are measured with.
_SEQUENCE = 128
# Columns of a block of the kernel at low density, see native/src/avx512/encoder.cpp.
_BLOCK = 128
# Another order of neurons is tried where it spares this share of the sums moved.
_MAX_MOVED = 0.95


def pack_encoder(encoder: nn.Module, precision: str) -> PackedEncoder:
    """The layers of a known encoder for one native call; an error says why it cannot be done.

    Neurons of its feed-forward blocks are reordered if that measures faster.

    Raises:
        TargetError: an encoder that one call does not compute.
        KernelMissing: no kernel packs one of its weights for such a call.
    """
    layers = read_layers(encoder)
    features = layers[0].qkv.matrix.shape[1]
    packed = PackedEncoder(layers, features, precision)
    reordered = reorder_neurons(layers)
    few_enough = reordered.moved_after <= _MAX_MOVED * reordered.moved_before
    if not few_enough or not settings.tuning_enabled():
        return packed
    other = PackedEncoder(reordered.layers, features, precision)
    x_ND = torch.randn(_SEQUENCE, features, generator=torch.Generator().manual_seed(0))
    times = duel(lambda: packed(x_ND, [_SEQUENCE]), lambda: other(x_ND, [_SEQUENCE]))
    return other if times.ratio > 1 else packed


@dataclass(frozen=True)
class Reordered:
    """Layers in their new order, and the rows of sums that `down` moves, before and after."""

    layers: list[EncoderBlock]
    moved_before: int
    moved_after: int


def reorder_neurons(layers: Sequence[EncoderBlock]) -> Reordered:
    """Sort the neurons of every layer by the weights that `down` keeps of them."""
    new: dict[int, EncoderBlock] = {}  # a layer that runs several times stays one
    before = after = 0
    for layer in layers:
        if id(layer) in new:
            continue
        down_DN = layer.down.matrix.mask()
        order_N = down_DN.sum(dim=0).argsort(descending=True, stable=True)
        before += moved_rows(down_DN)
        after += moved_rows(down_DN[:, order_N])
        rows = torch.cat([order_N, order_N + len(order_N)]) if layer.is_gated else order_N
        up = _in_order(layer.up, rows, None if layer.up.bias is None else layer.up.bias[rows])
        down = _in_order(layer.down, (slice(None), order_N), layer.down.bias)
        new[id(layer)] = replace(layer, up=up, down=down)
    return Reordered([new[id(layer)] for layer in layers], before, after)


def moved_rows(mask_DN: torch.Tensor, block: int = _BLOCK) -> int:
    """Rows of sums loaded and stored, once for every block of columns in which a row keeps any."""
    return sum(int(part.any(dim=1).sum()) for part in torch.split(mask_DN, block, dim=1))


def _in_order(linear: Product, index: Any, bias: torch.Tensor | None) -> Product:
    matrix = linear.matrix
    matrix = SparseMatrix.from_dense(matrix.dense()[index], matrix.mask()[index])
    return replace(linear, matrix=matrix, bias=bias)
