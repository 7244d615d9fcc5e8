# SPDX-License-Identifier: Apache-2.0
"""block: kept rectangles as compressed block rows.

Arrays: `values` [nb, r, c]; `block_columns` int32 [nb], strictly increasing inside a block row;
`block_row_pointers` int32 [R/r + 1]. Bytes: nb * (r*c * itemsize + 4) + (R/r + 1) * 4.
"""

import torch

from gossamer.formats.base import (
    STORED_DTYPES,
    Arrays,
    OwnFormat,
    expect_array,
    expect_only,
    with_mask,
)
from gossamer.formats.csr import check_columns, check_pointers, row_numbers, row_pointers
from gossamer.formats.matrix import SparseMatrix, matrix_shape
from gossamer.patterns import Block, Pattern

INDEX_BYTES = 4


class BlockFormat(OwnFormat[Block]):
    """Compressed sparse rows on the grid of blocks."""

    name = "block"
    own = Block
    stores = "block:RxC"

    def encode(self, matrix: SparseMatrix) -> dict[str, torch.Tensor]:
        """`values`, `block_columns` and `block_row_pointers`."""
        block = self.checked(matrix.pattern)
        kept_PQ = block.kept_blocks(matrix.mask())
        rows, columns = kept_PQ.nonzero().unbind(1)
        values = torch.empty_like(matrix.values)
        values[_places(block, rows, columns, matrix.shape[1]).argsort()] = matrix.values
        return {
            "values": values.view(-1, block.rows, block.columns),
            "block_columns": columns.to(torch.int32),
            "block_row_pointers": row_pointers(kept_PQ).to(torch.int32),
        }

    def decode(
        self, arrays: Arrays, shape: tuple[int, ...], pattern: Pattern, where: str = "tensor"
    ) -> SparseMatrix:
        """Check the rules of csr on the grid of blocks."""
        block, matrix = self.checked(pattern), matrix_shape(shape)
        down, across = block.grid(matrix)
        expect_only(arrays, ("values", "block_columns", "block_row_pointers"), where)
        wanted = (None, block.rows, block.columns)
        values = expect_array(arrays, "values", STORED_DTYPES, wanted, where)
        num_blocks = len(values)
        index = (torch.int32,)
        columns = expect_array(arrays, "block_columns", index, (num_blocks,), where).long()
        pointers = expect_array(arrays, "block_row_pointers", index, (down + 1,), where).long()
        check_pointers(pointers, num_blocks, f"{where} (blocks)")
        check_columns(columns, pointers, across, f"{where} (blocks)")
        rows = row_numbers(pointers)
        kept_PQ = torch.zeros(down, across, dtype=torch.bool, device=values.device)
        kept_PQ[rows, columns] = True
        mask = kept_PQ.repeat_interleave(block.rows, 0).repeat_interleave(block.columns, 1)
        order = _places(block, rows, columns, matrix[1]).argsort()
        return with_mask(values.flatten()[order], mask, shape, pattern)

    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Values, a column number per block, a pointer per block row and one more."""
        block = self.checked(pattern)
        num_blocks = nnz // (block.rows * block.columns)
        num_pointers = block.grid(shape)[0] + 1
        return nnz * itemsize + (num_blocks + num_pointers) * INDEX_BYTES


def _places(
    block: Block, block_rows: torch.Tensor, block_columns: torch.Tensor, num_columns: int
) -> torch.Tensor:
    """Row * K + column of every stored value, block by block; int64 [nnz]."""
    corners = block_rows * block.rows * num_columns + block_columns * block.columns
    rows = torch.arange(block.rows, device=corners.device)[:, None] * num_columns
    inside = rows + torch.arange(block.columns, device=corners.device)
    return (corners.view(-1, 1, 1) + inside).flatten()
