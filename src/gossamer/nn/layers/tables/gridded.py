# SPDX-License-Identifier: Apache-2.0
"""Ordinary tables whose numbers are on a grid, as those of int8 and int4 files: packed as they are.

Nothing is rounded: lookups give the same bits as the float32 table. Each span of columns has a
scale (`formats/grid/`). Such a table is stored as the ordinary one that it stands for.
"""

import torch
from torch import nn

from gossamer.errors import WeightIsPacked
from gossamer.formats.grid import Grid, find_grid
from gossamer.nn.layers.stand_in import Refusal, WeightStandIn
from gossamer.nn.layers.tables.base import MODES
from gossamer.nn.layers.tables.packed import PackedTable
from gossamer.ops.table import Rounding, Rows, pack_codes

__all__ = ["GridTable", "gridded"]

_LANES = 16  # spans of kernels are whole numbers of them
_MESSAGE = (
    "this table is packed, and the model computes with its weight itself. Give compile an example,"
    " which shows that: the table then stays as it is."
)


class GridTable(PackedTable):
    """An `nn.Embedding` or `nn.EmbeddingBag` on the codes of a grid; see `PackedTable`."""

    @property
    def weight(self) -> torch.Tensor:
        """Answers dtype, device and shape; the numbers are packed."""
        refusal = Refusal(WeightIsPacked, _MESSAGE)
        return WeightStandIn(self.weight_shape, torch.float32, self.codes.device, refusal)

    def to_compact(self) -> nn.Module:
        """What files hold: the ordinary table, whose numbers are on the grid."""
        return self.to_dense().eval().requires_grad_(False)


@torch.no_grad()
def gridded(stock: nn.Embedding | nn.EmbeddingBag) -> GridTable | None:
    """The packed form of a table that is on a grid, to the bit; None if it is on none.

    Tables with `max_norm`, with `mode="max"`, of other dtypes or devices stay as they are, and so
    do grids with offsets.
    """
    weight = stock._parameters.get("weight")
    mode = getattr(stock, "mode", None)
    if weight is None or weight.dtype is not torch.float32 or not weight.is_cpu:
        return None
    if stock.max_norm is not None or (mode is not None and mode not in MODES):
        return None
    grid = find_grid(weight.detach())
    if grid is None:
        return None
    last = getattr(stock, "include_last_offset", False)
    made = GridTable(_rows(weight.detach(), grid), stock.padding_idx, mode, last)
    made.sparse = stock.sparse
    return made


def _rows(weight_VD: torch.Tensor, grid: Grid) -> Rows:
    codes_VD, scales_VG, _ = grid.encode(weight_VD)
    width = weight_VD.shape[1]
    # One span of the whole row, whatever its width.
    span = grid.span if grid.span < width else -(-width // _LANES) * _LANES
    # A span of zeros has no scale; any will do.
    scales_VG = torch.where(scales_VG > 0, scales_VG.float(), 1.0)
    rounding = Rounding(grid.bits, "span", span=span)
    return Rows(pack_codes(codes_VD, grid.bits), width, rounding, scales_VG.contiguous())
