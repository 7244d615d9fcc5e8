# SPDX-License-Identifier: Apache-2.0
"""A table in torch's own operators alone, for exporters: the codes stay codes in their files.

Rows are gathered as bytes, taken apart, scaled and pooled. ONNX has all of these operators
(Gather, Cast, Div, Floor, Mul, ReduceSum, MatMul), so a file has the size of the packed table.

Legend: V rows, P positions (ids of a batch), N bags, D width.
"""

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.tables.base import TableLayer
from gossamer.ops.table import Rows

__all__ = ["PlainTable"]

_BYTE = 8


class PlainTable(nn.Module):
    """What a table gives, without a kernel of gossamer's. Inference only.

    Args:
        table: packed; its tensors are used, not copied.
    """

    def __init__(self, table: TableLayer) -> None:
        super().__init__()
        rows = table.rows()
        if rows.rounding is not None and not rows.is_coded:
            raise InputError(
                "table: its rows are float32 that lookups round. Pack it first:"
                " gossamer.compile(model), or a stage round: {tables: ...}."
            )
        self.register_buffer("codes", _stored(rows))
        self.register_buffer("scales", rows.scales)
        self.register_buffer("row_map", rows.row_map)
        self._rounding, self._width = rows.rounding, rows.width
        self._mode, self._padding = table.mode, table.padding_idx
        self._has_end = table.include_last_offset

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The rows of ids, or bags of them."""
        if self._mode is None:
            return self._rows(input)
        rows = self._rows(input)
        parts = torch.ones_like(rows[..., 0])
        if self._padding is not None:
            parts = (input != self._padding).float()
        counted = parts
        if per_sample_weights is not None:
            parts = parts * per_sample_weights
        if offsets is None:
            sums, counts = (rows * parts.unsqueeze(-1)).sum(1), counted.sum(1, keepdim=True)
        else:
            belongs_NP = self._belongs(len(input), offsets)
            sums, counts = belongs_NP @ (rows * parts.unsqueeze(-1)), belongs_NP @ counted[:, None]
        return sums if self._mode == "sum" else sums / counts.clamp(min=1)

    def _belongs(self, count: int, offsets: torch.Tensor) -> torch.Tensor:
        """Float32 [N, P]: 1 where an id is in a bag."""
        places = torch.arange(count, device=offsets.device)
        after = places >= offsets.long().unsqueeze(1)
        # A bag ends where the next one begins.
        if not self._has_end:
            after = torch.cat([after, torch.zeros_like(after[:1])])
        return after[:-1].float() - after[1:].float()

    def _rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Float32 [..., D]."""
        ids = ids.long()
        if self.row_map is not None:
            ids = self.row_map[ids].long()  # type: ignore[index]
        fields: torch.Tensor = self.codes[ids]  # type: ignore[index]
        if self._rounding is None:
            return fields
        bits = self._rounding.bits
        if bits < _BYTE:
            # Whole numbers below 256 are exact as floats, and every engine has these operators;
            # shifts and ANDs of bytes many have not.
            rest, each, size = fields.float(), [], 2**bits
            for _ in range(_BYTE // bits):
                higher = (rest / size).floor()
                each.append(rest - higher * size)
                rest = higher
            fields = torch.stack(each, -1).flatten(-2)[..., : self._width]
        whole = fields.float() - (0 if bits == _BYTE else 2 ** (bits - 1))
        scales: torch.Tensor = self.scales  # type: ignore[assignment]
        return whole * (scales[ids].unsqueeze(-1) if self._rounding.by_row else scales)


def _stored(rows: Rows) -> torch.Tensor:
    """The rows; codes of 8 bits as the signed numbers that they are."""
    if rows.rounding is not None and rows.rounding.bits == _BYTE:
        return rows.data.view(torch.int8)
    return rows.data
