# SPDX-License-Identifier: Apache-2.0
"""Tables for `torch.ops.quantized.embedding_bag_4bit_rowwise_offsets`, exact to the bit.

torch holds a row as its nibbles, low one first, an fp16 scale and an fp16 bias, and reads
`nibble * scale + bias`. Its own prepack finds a new, asymmetric scale for each row, and a table
that was trained in 4 bits does not survive that; here nibbles are the codes (q + 8), the bias is
-8 S. Scales must be fp16 numbers: train with `half_scale=True`.
"""

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.tables import packed_table, table_of

__all__ = ["export_bag_4bit"]

_WHERE = "export_bag_4bit"


@torch.no_grad()
def export_bag_4bit(layer: nn.Module) -> torch.Tensor:
    """A table of 4 bits as torch's 4-bit bags take it, uint8 [ids, width / 2 + 4].

    >>> import torch, gossamer
    >>> stock = torch.nn.EmbeddingBag(10, 16, mode="sum")
    >>> table = gossamer.nn.EmbeddingBag.from_dense(stock, bits=4, half_scale=True).eval()
    >>> packed = export_bag_4bit(table)
    >>> ids, offsets = torch.tensor([1, 2, 5]), torch.tensor([0, 2])
    >>> bag = torch.ops.quantized.embedding_bag_4bit_rowwise_offsets
    >>> torch.equal(bag(packed, ids, offsets), table(ids, offsets))
    True

    Args:
        layer: `gossamer.nn.Embedding` or `EmbeddingBag` of 4 bits, trained or packed.

    Raises:
        InputError: another layer, an odd width, or a scale that is no fp16 number.
    """
    table = table_of(layer)
    if table is None or table.bits != 4:
        raise InputError(f"{_WHERE}: takes a table of 4 bits, got {type(layer).__name__}.")
    if table.embedding_dim % 2:
        raise InputError(f"{_WHERE}: torch's rows are whole bytes; width {table.embedding_dim}.")
    rows = packed_table(table).rows()
    scales = rows.scales if rows.scales is not None else torch.ones(1)
    if not torch.equal((8 * scales).half().float(), 8 * scales):
        raise InputError(
            f"{_WHERE}: scales are not fp16 numbers, so results would differ. Train the table with"
            " half_scale=True."
        )
    both = torch.stack([scales, -8 * scales], dim=1).half().view(torch.uint8)
    packed = torch.cat([rows.data, both.expand(len(rows.data), 4)], dim=1)
    return packed if rows.row_map is None else packed.index_select(0, rows.row_map.long())
