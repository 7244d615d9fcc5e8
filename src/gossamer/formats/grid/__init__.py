# SPDX-License-Identifier: Apache-2.0
"""Weights that are small integers times a scale: rounded on request, stored without loss.

A `Grid` rounds weights, encodes those that are on it and packs their codes for a file; `find_grid`
says which one holds a weight to the bit. `Levels` are what the codes of one matrix stand for.
"""

from gossamer.formats.grid.grid import (
    Grid,
    Levels,
    find_grid,
    int4_grid,
    offsets_grid,
    row_grid,
)

__all__ = ["Grid", "Levels", "find_grid", "int4_grid", "offsets_grid", "row_grid"]
