# SPDX-License-Identifier: Apache-2.0
"""Weights on a grid, written as codes and scales and read back to the same bits.

Nothing is rounded here: a weight that is not on a grid to the last bit is stored as it is. What
puts weights on a grid is `gossamer.nn.rounding`.
"""

import torch

from gossamer.errors import ArtifactError, FormatError
from gossamer.formats import SparseTensor, pack, unpack, validate
from gossamer.formats.grid import (
    SCALE_DTYPE,
    Grid,
    check_scales,
    decode,
    encode,
    find_grid,
    pack_codes,
    packed_bytes,
    unpack_codes,
)
from gossamer.io.inventory import Slot
from gossamer.io.manifest import CodesEntry, DenseEntry, SparseEntry, TensorEntry
from gossamer.io.piece import Arrays, Piece, array_key
from gossamer.io.tensor_header import StoredTensor, dtype_name
from gossamer.patterns import Pattern

CODES, SCALES, VALUES = "codes", "scales", "values"
# Smaller tensors are not worth two more entries in a header.
_MIN_ELEMENTS = 1024


def grid_of(weight: torch.Tensor) -> Grid | None:
    """The grid that a weight of two or more dimensions is on; None: store it as it is."""
    if weight.ndim < 2 or weight.numel() < _MIN_ELEMENTS or weight.dtype is not torch.float32:
        return None
    return find_grid(weight.detach().flatten(1))


def scale_bytes(matrix: tuple[int, int], grid: Grid) -> int:
    """Bytes of the scales of a matrix."""
    return matrix[0] * grid.num_spans(matrix[1]) * SCALE_DTYPE.itemsize


def coded_dense(slot: Slot) -> Piece | None:
    """An ordinary weight as codes; None if it is on no grid."""
    grid = grid_of(slot.tensor)
    if grid is None:
        return None
    rows, columns = matrix = _matrix(slot.shape)

    def arrays() -> Arrays:
        codes_RK, scales_RG = encode(slot.tensor.detach().reshape(matrix), grid)
        stored = {CODES: pack_codes(codes_RK, grid.bits), SCALES: scales_RG}
        return {array_key(slot.name, name): data for name, data in stored.items()}

    def entry(file: str, _: tuple[str, ...]) -> TensorEntry:
        shape, codes = slot.shape, _entry(grid, matrix)
        return DenseEntry(file=file, shape=shape, dtype="float32", codes=codes)

    num_bytes = packed_bytes(rows * columns, grid.bits) + scale_bytes(matrix, grid)
    return Piece(slot.name, num_bytes, arrays, entry)


def coded_sparse(
    weight_RK: torch.Tensor, mask_RK: torch.Tensor, pattern: Pattern, format_name: str, grid: Grid
) -> tuple[Arrays, CodesEntry]:
    """Arrays of a sparse weight whose values are codes."""
    codes_RK, scales_RG = encode(weight_RK, grid)
    arrays = dict(pack(codes_RK.float(), mask_RK, pattern, format_name).arrays)
    values = arrays.pop(VALUES)
    arrays |= {CODES: pack_codes(values.to(torch.int8), grid.bits), SCALES: scales_RG}
    return arrays, _entry(grid, tuple(values.shape))


def stored_arrays(entry: DenseEntry) -> tuple[str, ...]:
    """Names of the arrays of an ordinary weight; none if it is stored under its own name."""
    return () if entry.codes is None else (CODES, SCALES)


def decode_dense(entry: DenseEntry, arrays: Arrays, where: str) -> torch.Tensor:
    """The weight behind codes."""
    grid, codes_RK = _read(entry.codes, arrays, where)
    return decode(codes_RK, arrays[SCALES], grid).view(entry.shape)


def decode_sparse(
    entry: SparseEntry, sparse: SparseTensor, where: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight [R, K], mask) behind codes; every index is validated. FormatError if one is bad."""
    grid, codes = _read(entry.codes, dict(sparse.arrays), where)
    arrays = {name: a for name, a in sparse.arrays.items() if name not in (CODES, SCALES)}
    as_values = SparseTensor(
        sparse.shape, sparse.pattern, sparse.format, {**arrays, VALUES: codes.float()}
    )
    validate(as_values, where)
    codes_RK, mask_RK = unpack(as_values)
    return decode(codes_RK, sparse.arrays[SCALES], grid), mask_RK


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
    matrix = _matrix(entry.shape) if len(entry.shape) > 1 else None
    if entry.dtype != "float32" or matrix is None:
        raise ArtifactError(f"{where}: codes stand for float32 weights of 2 or more dimensions.")
    count = torch.Size(codes.shape).numel()
    wanted_count = entry.mask.nnz if isinstance(entry, SparseEntry) else matrix[0] * matrix[1]
    if count != wanted_count:
        raise ArtifactError(f"{where}: {count} codes for {wanted_count} weights.")
    grid = Grid(codes.bits, codes.span)
    expected = {
        CODES: ("int8", codes.shape)
        if codes.bits == 8
        else ("uint8", (packed_bytes(count, codes.bits),)),
        SCALES: (dtype_name(SCALE_DTYPE), (matrix[0], grid.num_spans(matrix[1]))),
    }
    for array, (dtype, shape) in expected.items():
        found = stored.get(array_key(name, array))
        if found is None or dtype_name(found.dtype) != dtype or found.shape != shape:
            raise ArtifactError(f"{where}: its {array} must be stored as {dtype} {list(shape)}.")


def _read(entry: CodesEntry | None, arrays: Arrays, where: str) -> tuple[Grid, torch.Tensor]:
    if entry is None:
        raise FormatError(f"{where}: has no codes.")
    grid = Grid(entry.bits, entry.span)
    check_scales(arrays[SCALES], grid, where)
    return grid, unpack_codes(arrays[CODES], entry.shape, grid, where)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], torch.Size(shape[1:]).numel()


def _entry(grid: Grid, shape: tuple[int, ...]) -> CodesEntry:
    return CodesEntry(bits=8 if grid.bits == 8 else 4, span=grid.span, shape=shape)
