# SPDX-License-Identifier: Apache-2.0
"""Weights on a grid, written as codes and scales and read back to the same bits.

Nothing is rounded here: a weight that is not on a grid to the last bit is stored as it is. What
puts weights on a grid is `gossamer.nn.rounding`.
"""

from dataclasses import replace
from typing import Literal

import torch

from gossamer.errors import ArtifactError, FormatError
from gossamer.formats import SparseMatrix, decode, matrix_shape
from gossamer.formats.grid import Grid, Levels, find_grid
from gossamer.io.artifact.inventory import Slot
from gossamer.io.artifact.manifest import CodesEntry, DenseEntry, SparseEntry, TensorEntry
from gossamer.io.artifact.piece import Arrays, Piece, array_key
from gossamer.io.safe_files.tensors import StoredTensor, dtype_name
from gossamer.patterns import Pattern

CODES, SCALES, OFFSETS, VALUES = "codes", "scales", "offsets", "values"
# Smaller tensors are not worth two more entries in a header.
_MIN_ELEMENTS = 1024


def grid_of(weight: torch.Tensor, may_have_offsets: bool = False) -> Grid | None:
    """The grid that a weight of two or more dimensions is on; None: store it as it is."""
    if weight.ndim < 2 or weight.numel() < _MIN_ELEMENTS or weight.dtype is not torch.float32:
        return None
    return find_grid(weight.detach().flatten(1), may_have_offsets)


def scale_bytes(matrix: tuple[int, int], grid: Grid) -> int:
    """Bytes of the scales of a matrix, and of its offsets."""
    arrays = 2 if grid.has_offsets else 1
    return arrays * matrix[0] * grid.num_spans(matrix[1]) * grid.scale_dtype.itemsize


def coded_dense(slot: Slot) -> Piece | None:
    """An ordinary weight as codes; None if it is on no grid."""
    grid = grid_of(slot.tensor, may_have_offsets=True)
    if grid is None:
        return None
    rows, columns = matrix = matrix_shape(slot.shape)

    def arrays() -> Arrays:
        codes_RK, scales_RG, offsets_RG = grid.encode(slot.tensor.detach().reshape(matrix))
        stored = {CODES: grid.pack(codes_RK), SCALES: scales_RG}
        if offsets_RG is not None:
            stored[OFFSETS] = offsets_RG
        return {array_key(slot.name, name): data for name, data in stored.items()}

    def entry(file: str, _: tuple[str, ...]) -> TensorEntry:
        shape, codes = slot.shape, _entry(grid, matrix)
        return DenseEntry(file=file, shape=shape, dtype="float32", codes=codes)

    num_bytes = grid.packed_bytes(rows * columns) + scale_bytes(matrix, grid)
    return Piece(slot.name, num_bytes, arrays, entry)


def as_codes(arrays: Arrays, levels: Levels) -> tuple[Arrays, CodesEntry]:
    """Arrays of a format whose values are codes, as a file holds these, and what they stand for."""
    values = arrays.pop(VALUES)
    arrays |= {CODES: levels.grid.pack(values), SCALES: levels.scales}
    return arrays, _entry(levels.grid, tuple(values.shape))


def stored_arrays(entry: DenseEntry) -> tuple[str, ...]:
    """Names of the arrays of an ordinary weight; none if it is stored under its own name."""
    if entry.codes is None:
        return ()
    return (CODES, SCALES, OFFSETS) if entry.codes.offsets else (CODES, SCALES)


def decode_dense(entry: DenseEntry, arrays: Arrays, where: str) -> torch.Tensor:
    """The weight behind codes."""
    grid, codes_RK = _read(entry.codes, arrays, where)
    return grid.decode(codes_RK, arrays[SCALES], arrays.get(OFFSETS)).view(entry.shape)


def decode_sparse(entry: SparseEntry, arrays: Arrays, pattern: Pattern, where: str) -> SparseMatrix:
    """The matrix behind the arrays of an entry; every index is validated."""
    if entry.codes is None:
        return decode(entry.format, arrays, entry.shape, pattern, where)
    grid, codes = _read(entry.codes, arrays, where)
    others = {name: a for name, a in arrays.items() if name not in (CODES, SCALES)}
    matrix = decode(entry.format, {**others, VALUES: codes}, entry.shape, pattern, where)
    return replace(matrix, levels=Levels(grid, arrays[SCALES]))


def check_coded(
    name: str,
    entry: DenseEntry | SparseEntry,
    stored: dict[str, StoredTensor],
    where: str,
) -> None:
    """Raise ArtifactError unless the headers of codes and scales fit their description."""
    codes = entry.codes
    if codes is None:
        return
    matrix = matrix_shape(entry.shape) if len(entry.shape) > 1 else None
    if entry.dtype != "float32" or matrix is None:
        raise ArtifactError(f"{where}: codes stand for float32 weights of 2 or more dimensions.")
    if codes.offsets and (codes.bits != 4 or isinstance(entry, SparseEntry)):
        raise ArtifactError(f"{where}: offsets belong to int4 weights without a mask.")
    count = torch.Size(codes.shape).numel()
    wanted_count = entry.mask.nnz if isinstance(entry, SparseEntry) else matrix[0] * matrix[1]
    if count != wanted_count:
        raise ArtifactError(f"{where}: {count} codes for {wanted_count} weights.")
    grid = Grid(codes.bits, codes.span, codes.offsets)
    scales = (dtype_name(grid.scale_dtype), (matrix[0], grid.num_spans(matrix[1])))
    expected = {
        CODES: ("int8", codes.shape) if codes.bits == 8 else ("uint8", (grid.packed_bytes(count),)),
        SCALES: scales,
        **({OFFSETS: scales} if codes.offsets else {}),
    }
    for array, (dtype, shape) in expected.items():
        found = stored.get(array_key(name, array))
        if found is None or dtype_name(found.dtype) != dtype or found.shape != shape:
            raise ArtifactError(f"{where}: its {array} must be stored as {dtype} {list(shape)}.")


def _read(entry: CodesEntry | None, arrays: Arrays, where: str) -> tuple[Grid, torch.Tensor]:
    if entry is None:
        raise FormatError(f"{where}: has no codes.")
    grid = Grid(entry.bits, entry.span, entry.offsets)
    grid.check_scales(arrays[SCALES], arrays.get(OFFSETS), where)
    return grid, grid.unpack(arrays[CODES], entry.shape, where)


def _entry(grid: Grid, shape: tuple[int, ...]) -> CodesEntry:
    bits: Literal[8, 4] = 8 if grid.bits == 8 else 4
    return CodesEntry(bits=bits, span=grid.span, shape=shape, offsets=grid.has_offsets)
