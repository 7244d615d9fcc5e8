# SPDX-License-Identifier: Apache-2.0
"""csr: column numbers of the kept weights, row by row. The smallest format below 6 % density.

Arrays: `values` [nnz]; `columns` [nnz], uint16 where K <= 65536, int32 above, strictly increasing
inside a row; `row_pointers` [R + 1], int32 where nnz < 2**31, int64 above.
Bytes: nnz * (itemsize + 2 or 4) + (R + 1) * (4 or 8).
"""

import torch

from gossamer.errors import FormatError
from gossamer.formats.base import (
    STORED_DTYPES,
    Arrays,
    Format,
    check_mask_is_legal,
    expect_array,
    expect_only,
    with_mask,
)
from gossamer.formats.matrix import SparseMatrix, matrix_shape
from gossamer.patterns import Pattern, Unstructured

MAX_COLUMNS = 1 << 31


def column_dtype(num_columns: int) -> torch.dtype:
    """The smallest type that holds every column number."""
    return torch.uint16 if num_columns <= 1 << 16 else torch.int32


def pointer_dtype(nnz: int) -> torch.dtype:
    """The smallest type that counts the kept weights."""
    return torch.int32 if nnz < 1 << 31 else torch.int64


class CSR(Format):
    """Compressed sparse rows."""

    name = "csr"

    def supports(self, pattern: Pattern) -> bool:
        """Unstructured masks, and patterns of fixed density.

        For these, the size of the arrays bounds the size of the mask that `validate` must build;
        others would let a small file ask for any amount of memory.
        """
        return isinstance(pattern, Unstructured) or pattern.fixed_density is not None

    def encode(self, matrix: SparseMatrix) -> dict[str, torch.Tensor]:
        """`values`, `columns` and `row_pointers`."""
        mask_RK = matrix.mask()
        columns = mask_RK.nonzero()[:, 1]
        return {
            "values": matrix.values,
            "columns": columns.to(column_dtype(mask_RK.shape[1])),
            "row_pointers": row_pointers(mask_RK).to(pointer_dtype(len(columns))),
        }

    def decode(
        self, arrays: Arrays, shape: tuple[int, ...], pattern: Pattern, where: str = "tensor"
    ) -> SparseMatrix:
        """Check pointers from 0 to nnz, columns in range and increasing, and the pattern."""
        num_rows, num_columns = matrix = matrix_shape(shape)
        if num_columns > MAX_COLUMNS:
            raise FormatError(f"{where}: csr holds at most 2**31 columns, got {num_columns}.")
        expect_only(arrays, ("values", "columns", "row_pointers"), where)
        values = expect_array(arrays, "values", STORED_DTYPES, (None,), where)
        nnz = len(values)
        dtype = column_dtype(num_columns)
        columns = expect_array(arrays, "columns", (dtype,), (nnz,), where).long()
        dtype = pointer_dtype(nnz)
        pointers = expect_array(arrays, "row_pointers", (dtype,), (num_rows + 1,), where).long()
        check_pointers(pointers, nnz, where)
        check_columns(columns, pointers, num_columns, where)
        structured = not isinstance(pattern, Unstructured)
        if structured:
            expected = (pattern.fixed_density or 0.0) * num_rows * num_columns
            if abs(nnz - expected) > 0.5:
                raise FormatError(
                    f"{where}: {pattern} keeps {expected:.0f} weights of {list(matrix)}, but there"
                    f" are {nnz} values."
                )
        mask_RK = torch.zeros(matrix, dtype=torch.bool, device=columns.device)
        mask_RK[row_numbers(pointers), columns] = True
        if structured:
            check_mask_is_legal(mask_RK, pattern, where)
        return with_mask(values, mask_RK, shape, pattern)

    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Values, a column number each, a pointer per row and one more."""
        index_bytes = column_dtype(shape[1]).itemsize
        return nnz * (itemsize + index_bytes) + (shape[0] + 1) * pointer_dtype(nnz).itemsize


def check_pointers(pointers: torch.Tensor, num_entries: int, where: str) -> None:
    """Raise FormatError unless int64 pointers start at 0, never decrease and end at the count."""
    first, last = int(pointers[0]), int(pointers[-1])
    if first != 0 or last != num_entries:
        raise FormatError(
            f"{where}: row pointers must run from 0 to {num_entries}, found {first} to {last}."
        )
    falls = (pointers[1:] < pointers[:-1]).nonzero()
    if len(falls):
        raise FormatError(f"{where}: row pointers decrease after row {int(falls[0])}.")


def check_columns(
    columns: torch.Tensor, pointers: torch.Tensor, num_columns: int, where: str
) -> None:
    """Raise FormatError unless int64 columns are in range and strictly increasing in each row."""
    outside = ((columns < 0) | (columns >= num_columns)).nonzero()
    if len(outside):
        entry = int(outside[0])
        raise FormatError(
            f"{where}: column {int(columns[entry])} of entry {entry} is outside 0 to"
            f" {num_columns - 1}."
        )
    rows = row_numbers(pointers)
    wrong = ((columns[1:] <= columns[:-1]) & (rows[1:] == rows[:-1])).nonzero()
    if len(wrong):
        entry = int(wrong[0]) + 1
        raise FormatError(
            f"{where}: columns of row {int(rows[entry])} must strictly increase, but"
            f" {int(columns[entry])} follows {int(columns[entry - 1])}."
        )


def row_pointers(mask_RK: torch.Tensor) -> torch.Tensor:
    """Where the entries of each row begin, int64, and how many there are."""
    pointers = mask_RK.new_zeros(len(mask_RK) + 1, dtype=torch.int64)
    torch.cumsum(mask_RK.sum(dim=1), dim=0, out=pointers[1:])
    return pointers


def row_numbers(pointers: torch.Tensor) -> torch.Tensor:
    """The row of every entry, int64, from valid row pointers."""
    rows = torch.arange(len(pointers) - 1, device=pointers.device)
    return rows.repeat_interleave(pointers.diff())
