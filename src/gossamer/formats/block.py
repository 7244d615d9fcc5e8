# SPDX-License-Identifier: Apache-2.0
"""block: kept rectangles as compressed block rows.

Arrays: `values` [nb, r, c]; `block_columns` int32 [nb], strictly increasing inside a block row;
`block_row_pointers` int32 [R/r + 1]. Bytes: nb * (r*c * itemsize + 4) + (R/r + 1) * 4.
"""

import torch

from gossamer.errors import FormatError
from gossamer.formats.base import VALUE_DTYPES, Arrays, Format, expect_array, expect_only
from gossamer.formats.csr import check_columns, check_pointers, row_numbers
from gossamer.patterns.base import Pattern
from gossamer.patterns.block import Block

INDEX_BYTES = 4


class BlockFormat(Format):
    """Compressed sparse rows on the grid of blocks."""

    name = "block"

    def supports(self, pattern: Pattern) -> bool:
        """block:RxC only."""
        return isinstance(pattern, Block)

    def pack(
        self, weight_RK: torch.Tensor, mask_RK: torch.Tensor, pattern: Pattern
    ) -> dict[str, torch.Tensor]:
        """`values`, `block_columns` and `block_row_pointers`."""
        block = _block(pattern)
        kept_PQ = block.kept_blocks(mask_RK)
        down, across = kept_PQ.shape
        tiles_PQrc = weight_RK.reshape(down, block.rows, across, block.columns).transpose(1, 2)
        pointers = kept_PQ.new_zeros(down + 1, dtype=torch.int64)
        torch.cumsum(kept_PQ.sum(dim=1), dim=0, out=pointers[1:])
        return {
            "values": tiles_PQrc[kept_PQ],
            "block_columns": kept_PQ.nonzero()[:, 1].to(torch.int32),
            "block_row_pointers": pointers.to(torch.int32),
        }

    def validate(
        self, arrays: Arrays, shape: tuple[int, int], pattern: Pattern, where: str = "tensor"
    ) -> None:
        """Check the rules of csr on the grid of blocks."""
        block = _block(pattern)
        down, across = block.grid(shape)
        expect_only(arrays, ("values", "block_columns", "block_row_pointers"), where)
        wanted = (None, block.rows, block.columns)
        num_blocks = len(expect_array(arrays, "values", VALUE_DTYPES, wanted, where))
        index = (torch.int32,)
        columns = expect_array(arrays, "block_columns", index, (num_blocks,), where).long()
        pointers = expect_array(arrays, "block_row_pointers", index, (down + 1,), where).long()
        check_pointers(pointers, num_blocks, f"{where} (blocks)")
        check_columns(columns, pointers, across, f"{where} (blocks)")

    def unpack(
        self, arrays: Arrays, shape: tuple[int, int], pattern: Pattern
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(weight, mask)."""
        block = _block(pattern)
        down, across = block.grid(shape)
        values = arrays["values"]
        rows = row_numbers(arrays["block_row_pointers"].long())
        columns = arrays["block_columns"].long()
        tiles = values.new_zeros(down, across, block.rows, block.columns)
        tiles[rows, columns] = values
        kept_PQ = torch.zeros(down, across, dtype=torch.bool, device=values.device)
        kept_PQ[rows, columns] = True
        mask = kept_PQ.repeat_interleave(block.rows, 0).repeat_interleave(block.columns, 1)
        return tiles.transpose(1, 2).reshape(shape), mask

    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Values, a column number per block, a pointer per block row and one more."""
        block = _block(pattern)
        num_blocks = nnz // (block.rows * block.columns)
        num_pointers = block.grid(shape)[0] + 1
        return nnz * itemsize + (num_blocks + num_pointers) * INDEX_BYTES


def _block(pattern: Pattern) -> Block:
    if not isinstance(pattern, Block):
        raise FormatError(f"format block stores block:RxC patterns only, got {pattern}.")
    return pattern
