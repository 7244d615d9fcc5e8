# SPDX-License-Identifier: Apache-2.0
"""nmg: grouped n:m as in STen; which rows are kept follows from the place in the array.

Legend: tile = m rows by W = C*g columns, C row patterns in Gray order, g columns of each.
Arrays: `values` [K/W, R/m, C, g, n]; `columns` int16 [K/W, R/m, C, g], the column inside the tile,
strictly increasing among the g of a pattern, each of the W columns once.
Bytes: nnz * itemsize + R*K/m * 2.
"""

import torch

from gossamer.errors import FormatError
from gossamer.formats.base import VALUE_DTYPES, Arrays, Format, expect_array, expect_only
from gossamer.patterns.base import Pattern
from gossamer.patterns.nmg import NMG


class NMGFormat(Format):
    """Values in kernel order beside one 16-bit column per n of them."""

    name = "nmg"

    def supports(self, pattern: Pattern) -> bool:
        """nmg:n:m:g only."""
        return isinstance(pattern, NMG)

    def pack(
        self, weight_RK: torch.Tensor, mask_RK: torch.Tensor, pattern: Pattern
    ) -> dict[str, torch.Tensor]:
        """`values` and `columns`."""
        nmg = _nmg(pattern)
        grid = _grid(nmg, (mask_RK.shape[0], mask_RK.shape[1]))
        if mask_RK.numel() == 0:
            empty = weight_RK.new_zeros(*grid, nmg.num_kept)
            return {"values": empty, "columns": empty.new_zeros(grid, dtype=torch.int16)}
        columns = nmg.row_pattern_ids(mask_RK).sort(dim=-1, stable=True).indices.view(grid)
        tiles = nmg.tiled(weight_RK)
        across, down, rows = _tile_index(nmg, grid, weight_RK.device)
        return {
            "values": tiles[across, down, columns.unsqueeze(-1), rows],
            "columns": columns.to(torch.int16),
        }

    def validate(
        self, arrays: Arrays, shape: tuple[int, int], pattern: Pattern, where: str = "tensor"
    ) -> None:
        """Check that the columns of each tile are a permutation, increasing per row pattern."""
        nmg = _nmg(pattern)
        grid = _grid(nmg, shape)
        expect_only(arrays, ("values", "columns"), where)
        expect_array(arrays, "values", VALUE_DTYPES, (*grid, nmg.num_kept), where)
        columns = expect_array(arrays, "columns", (torch.int16,), grid, where)
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

    def unpack(
        self, arrays: Arrays, shape: tuple[int, int], pattern: Pattern
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(weight, mask)."""
        nmg = _nmg(pattern)
        grid = _grid(nmg, shape)
        values = arrays["values"]
        if values.numel() == 0:
            return values.new_zeros(shape), values.new_zeros(shape, dtype=torch.bool)
        columns = arrays["columns"].long().unsqueeze(-1)
        across, down, rows = _tile_index(nmg, grid, values.device)
        weight_tiles = values.new_zeros(*grid[:2], nmg.tile_columns, nmg.group)
        weight_tiles[across, down, columns, rows] = values
        mask_tiles = torch.zeros_like(weight_tiles, dtype=torch.bool)
        mask_tiles[across, down, columns, rows] = True
        return nmg.untiled(weight_tiles, shape), nmg.untiled(mask_tiles, shape)

    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Values plus two bytes per n of them."""
        across, down, num_patterns, repeats = _grid(_nmg(pattern), shape)
        num_columns = across * down * num_patterns * repeats
        return num_columns * (_nmg(pattern).num_kept * itemsize + 2)


def _nmg(pattern: Pattern) -> NMG:
    if not isinstance(pattern, NMG):
        raise FormatError(f"format nmg stores nmg:n:m:g patterns only, got {pattern}.")
    return pattern


def _grid(nmg: NMG, shape: tuple[int, int]) -> tuple[int, int, int, int]:
    across, down = shape[1] // nmg.tile_columns, shape[0] // nmg.group
    return across, down, nmg.num_row_patterns, nmg.repeats


def _tile_index(
    nmg: NMG, grid: tuple[int, int, int, int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Indices that broadcast to [K/W, R/m, C, g, n]: tile across, tile down, kept row."""
    across = torch.arange(grid[0], device=device).view(-1, 1, 1, 1, 1)
    down = torch.arange(grid[1], device=device).view(1, -1, 1, 1, 1)
    return across, down, nmg.row_patterns(device).view(1, 1, grid[2], 1, nmg.num_kept)
