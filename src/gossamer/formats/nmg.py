# SPDX-License-Identifier: Apache-2.0
"""nmg: grouped n:m as in STen; which rows are kept follows from the place in the array.

Legend: tile = m rows by W = C*g columns, C row patterns in Gray order, g columns of each.
Arrays: `values` [K/W, R/m, C, g, n]; `columns` int16 [K/W, R/m, C, g], the column inside the tile,
strictly increasing among the g of a pattern, each of the W columns once.
Bytes: nnz * itemsize + R*K/m * 2.
"""

import math

import torch

from gossamer.errors import FormatError
from gossamer.formats.base import STORED_DTYPES, Arrays, OwnFormat, expect_arrays, with_mask
from gossamer.formats.matrix import SparseMatrix, matrix_shape
from gossamer.patterns import NMG, Pattern


class NMGFormat(OwnFormat[NMG]):
    """Values in kernel order beside one 16-bit column per n of them."""

    name = "nmg"
    own = NMG
    stores = "nmg:n:m:g"

    def encode(self, matrix: SparseMatrix) -> dict[str, torch.Tensor]:
        """`values` and `columns`."""
        nmg = self.checked(matrix.pattern)
        grid = _grid(nmg, matrix.shape)
        columns = nmg.row_pattern_ids(matrix.mask()).sort(dim=-1, stable=True).indices.view(grid)
        order = _places(nmg, columns, matrix.shape).argsort()
        values = torch.empty_like(matrix.values)
        values[order] = matrix.values
        return {
            "values": values.view(*grid, nmg.num_kept),
            "columns": columns.to(torch.int16),
        }

    def decode(
        self, arrays: Arrays, shape: tuple[int, ...], pattern: Pattern, where: str = "tensor"
    ) -> SparseMatrix:
        """Check that the columns of each tile are a permutation, increasing per row pattern."""
        nmg, matrix = self.checked(pattern), matrix_shape(shape)
        grid = _grid(nmg, matrix)
        values, columns = expect_arrays(
            arrays,
            where,
            values=(STORED_DTYPES, (*grid, nmg.num_kept)),
            columns=((torch.int16,), grid),
        )
        outside = ((columns < 0) | (columns >= nmg.tile_columns)).nonzero()
        if len(outside):
            place = tuple(outside[0].tolist())
            raise FormatError(
                f"{where}: column {int(columns[place])} of entry {list(place)} is outside 0 to"
                f" {nmg.tile_columns - 1}."
            )
        wrong = (columns[..., 1:] <= columns[..., :-1]).nonzero()
        if len(wrong):
            across, down, which, _ = wrong[0].tolist()
            raise FormatError(
                f"{where}: columns of tile [{across}, {down}], row pattern {which}, must strictly"
                f" increase, found {columns[across, down, which].tolist()}."
            )
        # W columns in range and none missing: each occurs once.
        seen = torch.zeros(*grid[:2], nmg.tile_columns, dtype=torch.bool, device=columns.device)
        missing = (~seen.scatter_(2, columns.flatten(2).long(), True)).nonzero()
        if len(missing):
            across, down, column = missing[0].tolist()
            raise FormatError(
                f"{where}: tile [{across}, {down}] must use each of its {nmg.tile_columns} columns"
                f" once, but {column} is missing."
            )
        places = _places(nmg, columns.long(), matrix)
        mask_RK = torch.zeros(matrix, dtype=torch.bool, device=columns.device)
        mask_RK.view(-1)[places] = True
        return with_mask(values.flatten()[places.argsort()], mask_RK, shape, pattern)

    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Values plus two bytes per n of them."""
        nmg = self.checked(pattern)
        return math.prod(_grid(nmg, shape)) * (nmg.num_kept * itemsize + 2)


def _grid(nmg: NMG, shape: tuple[int, int]) -> tuple[int, int, int, int]:
    """Tiles across and down, row patterns, columns of each."""
    across, down = shape[1] // nmg.tile_columns, shape[0] // nmg.group
    return across, down, nmg.num_row_patterns, nmg.repeats


def _places(nmg: NMG, columns: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Row * K + column of every stored value, in the order of the array; int64 [nnz]."""
    if not columns.numel():  # the other side may be huge
        return columns.flatten()
    across, down, num_patterns, _ = columns.shape
    device = columns.device
    tile_column = torch.arange(across, device=device).view(-1, 1, 1, 1, 1) * nmg.tile_columns
    tile_row = torch.arange(down, device=device).view(1, -1, 1, 1, 1) * nmg.group
    rows = nmg.row_patterns(device).view(1, 1, num_patterns, 1, nmg.num_kept)
    return ((tile_row + rows) * shape[1] + tile_column + columns.unsqueeze(-1)).flatten()
