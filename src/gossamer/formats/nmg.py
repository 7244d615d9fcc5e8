# SPDX-License-Identifier: Apache-2.0
"""nmg: grouped n:m as in STen; which rows are kept follows from the place in the array.

Legend: tile = m rows by W = C*g columns, C row patterns in Gray order, g columns of each.
A column of a tile is a group: m rows of which n are kept. Arrays: `values` [K/W, R/m, C, g, n];
`choices` uint8 [ceil(R/m*K * b / 8)], for each tile the row pattern of each of its W columns in
b = ceil(log2 C) bits, each row pattern g times. The columns of a pattern follow in their order.
Bytes: nnz * itemsize + ceil(R/m*K * b / 8).

Files written before have `columns` in the place of choices: int16 [K/W, R/m, C, g], the column
inside the tile, strictly increasing among the g of a pattern, each of the W columns once. They are
read, and no longer written.
"""

import math

import torch

from gossamer.errors import FormatError
from gossamer.formats.base import STORED_DTYPES, Arrays, OwnFormat, expect_arrays, with_mask
from gossamer.formats.bits import row_bytes
from gossamer.formats.choices import check_numbers, choice_bits, pack_numbers, unpack_numbers
from gossamer.formats.matrix import SparseMatrix, matrix_shape
from gossamer.patterns import NMG, Pattern


class NMGFormat(OwnFormat[NMG]):
    """Values in kernel order beside the row pattern of every column of a tile."""

    name = "nmg"
    own = NMG
    stores = "nmg:n:m:g"

    def encode(self, matrix: SparseMatrix) -> dict[str, torch.Tensor]:
        """`values` and `choices`."""
        nmg = self.checked(matrix.pattern)
        grid = _grid(nmg, matrix.shape)
        ids = nmg.row_pattern_ids(matrix.mask())
        columns = ids.sort(dim=-1, stable=True).indices.view(grid)
        order = _places(nmg, columns, matrix.shape).argsort()
        values = torch.empty_like(matrix.values)
        values[order] = matrix.values
        return {
            "values": values.view(*grid, nmg.num_kept),
            "choices": pack_numbers(ids.flatten(), choice_bits(nmg.num_kept, nmg.group)),
        }

    def decode(
        self, arrays: Arrays, shape: tuple[int, ...], pattern: Pattern, where: str = "tensor"
    ) -> SparseMatrix:
        """Check that each tile uses each row pattern in g of its columns."""
        nmg, matrix = self.checked(pattern), matrix_shape(shape)
        grid = _grid(nmg, matrix)
        read = _read_columns if "columns" in arrays else _read_choices
        values, columns = read(arrays, nmg, grid, where)
        places = _places(nmg, columns, matrix)
        mask_RK = torch.zeros(matrix, dtype=torch.bool, device=columns.device)
        mask_RK.view(-1)[places] = True
        return with_mask(values.flatten()[places.argsort()], mask_RK, shape, pattern)

    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Values plus ceil(log2 C(m, n)) bits for each n of them, padded to bytes once."""
        nmg = self.checked(pattern)
        groups, bits = math.prod(_grid(nmg, shape)), choice_bits(nmg.num_kept, nmg.group)
        return groups * nmg.num_kept * itemsize + row_bytes(groups, bits)


def _read_choices(
    arrays: Arrays, nmg: NMG, grid: tuple[int, int, int, int], where: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and int64 columns [K/W, R/m, C, g] of a file that has choices."""
    groups, bits = math.prod(grid), choice_bits(nmg.num_kept, nmg.group)
    values, packed = expect_arrays(
        arrays,
        where,
        values=(STORED_DTYPES, (*grid, nmg.num_kept)),
        choices=((torch.uint8,), (row_bytes(groups, bits),)),
    )
    ids = unpack_numbers(packed, groups, bits, where)
    check_numbers(ids, nmg.num_row_patterns, where)
    ids = ids.view(*grid[:2], nmg.tile_columns)
    used = torch.zeros(grid[:3], dtype=ids.dtype, device=ids.device)
    wrong = (used.scatter_add_(2, ids, torch.ones_like(ids)) != nmg.repeats).nonzero()
    if len(wrong):
        across, down, which = wrong[0].tolist()
        raise FormatError(
            f"{where}: tile [{across}, {down}] must use each row pattern in {nmg.repeats} columns,"
            f" but uses number {which} in {int(used[across, down, which])}."
        )
    return values, ids.sort(dim=-1, stable=True).indices.view(grid)


def _read_columns(
    arrays: Arrays, nmg: NMG, grid: tuple[int, int, int, int], where: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and int64 columns [K/W, R/m, C, g] of a file that has columns."""
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
    return values, columns.long()


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
