# SPDX-License-Identifier: Apache-2.0
"""Tables for inference: codes and one scale for a table or for each row, read in place."""

from typing import Any

import torch

from gossamer.nn.layers.tables.base import TableLayer
from gossamer.ops.table import PackedRows, Rounding, Rows, encode_rows, settled


class PackedTable(TableLayer):
    """A table whose rows are packed. Inference only.

    Args:
        rows: codes with scales, or float32; folded ones have a map.
        padding_idx, mode, include_last_offset: as torch.nn has them; mode None for nn.Embedding.

    Attributes:
        codes: uint8 [rows, bytes], or float32 [rows, embedding_dim].
        scales: float32 [1] or [rows]; None for float32.
    """

    form = "packed"
    TENSORS = ("codes", "row_map", "scales")
    codes: torch.Tensor
    scales: torch.Tensor | None

    def __init__(
        self,
        rows: Rows,
        padding_idx: int | None = None,
        mode: str | None = None,
        include_last_offset: bool = False,
    ) -> None:
        sizes = (rows.num_ids, rows.width)
        super().__init__(*sizes, padding_idx, rows.rounding, mode, include_last_offset)
        rows.check("table")
        self.register_buffer("codes", settled(rows.data.detach()))
        self.register_buffer("scales", rows.scales)
        self.register_buffer("row_map", rows.row_map)
        self._packed: PackedRows | None = None
        self.choices: tuple[Any, ...] = ()
        self.eval()

    def rows(self) -> Rows:
        """The rows as kernels see them."""
        return Rows(self.codes, self.embedding_dim, self.rounding, self.scales, self.row_map)

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and map."""
        return self.rows().nbytes

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The rows of ids, or bags of them."""
        return self._shaped(self._ready()(self._bags(input, offsets, per_sample_weights)), input)

    def _ready(self) -> PackedRows:
        """Checked and addressed once; again if a buffer was replaced or edited."""
        packed = self._packed
        if packed is None or not packed.is_of(self.codes, self.scales, self.row_map):
            packed = self._packed = PackedRows(self.rows())
        return packed

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None}


class PackedEmbedding(PackedTable):
    """`nn.Embedding` on packed rows; see `PackedTable`."""


class PackedEmbeddingBag(PackedTable):
    """`nn.EmbeddingBag` on packed rows; see `PackedTable`."""


def packed_table(layer: TableLayer, rows: Rows | None = None) -> PackedTable:
    """The packed form of a table: what its lookups give, to the bit; or these rows in its place."""
    if rows is None:
        rows = layer.rows()
        if rows.rounding is not None and not rows.is_coded:
            table_scale = None if rows.scales is None else float(rows.scales)
            codes, scales = encode_rows(rows.data, rows.rounding, table_scale)
            rows = Rows(codes, rows.width, rows.rounding, scales, rows.row_map)
    made = PackedEmbedding if layer.mode is None else PackedEmbeddingBag
    return made(rows, layer.padding_idx, layer.mode, layer.include_last_offset)


def packed_stock(stock: Any, rounding: Rounding | None) -> PackedTable:
    """The packed form of an ordinary table (rounding after training)."""
    weight = stock.weight.detach()
    rows = Rows(weight, weight.shape[1])
    if rounding is not None:
        codes, scales = encode_rows(weight, rounding)
        rows = Rows(codes, weight.shape[1], rounding, scales)
    mode = getattr(stock, "mode", None)
    made = PackedEmbedding if mode is None else PackedEmbeddingBag
    return made(rows, stock.padding_idx, mode, getattr(stock, "include_last_offset", False))
