# SPDX-License-Identifier: Apache-2.0
"""vnm: V:2:M weights as 2 values per group, 2-bit positions and 4 shared columns per row block.

Legend: G = K/M groups, B = ceil(R/V) row blocks, b = ceil(log2 M) bits of a column, as in the
paper. Arrays: `values` [R, G, 2]; `positions` uint8 [R, ceil(G*2/4)], 2 bits each, low bits first:
which of the 4 shared columns, strictly increasing; `shared` uint8 [ceil(B*G*4*b / 8)], the columns
of each block and group, strictly increasing, below M. Where the rows of a block use fewer than 4
columns, the lowest unused ones fill up.
Bytes: R*G*2 * itemsize + R * ceil(G/2) + ceil(B*G*4*b / 8).

Files written before have `columns` in the place of `shared`: uint8 [B, G, 4], one byte each. They
are read, and no longer written.
"""

import torch

from gossamer.formats.base import STORED_DTYPES, Arrays, OwnFormat, expect_arrays, with_mask
from gossamer.formats.bits import check_spare_bits, pack_fields, row_bytes, unpack_fields
from gossamer.formats.choices import pack_numbers, unpack_numbers
from gossamer.formats.matrix import SparseMatrix, matrix_shape
from gossamer.formats.nm import check_positions
from gossamer.patterns import VNM, Pattern
from gossamer.patterns.selection import keep_largest
from gossamer.patterns.syntax import NUM_KEPT, NUM_SHARED

POSITION_BITS = 2


class VNMFormat(OwnFormat[VNM]):
    """Values, 2-bit positions and shared columns of a V:2:M weight."""

    name = "vnm"
    own = VNM
    stores = "V:N:M"

    def encode(self, matrix: SparseMatrix) -> dict[str, torch.Tensor]:
        """`values`, `positions` and `shared`."""
        vnm, shape, mask_RK = self.checked(matrix.pattern), matrix.shape, matrix.mask()
        num_blocks, num_groups = vnm.grid(shape)
        if mask_RK.numel():
            shared_BGM = keep_largest(vnm.row_blocks(mask_RK).any(dim=1).float(), NUM_SHARED)
            columns_BG4 = shared_BGM.nonzero()[:, 2].view(num_blocks, num_groups, NUM_SHARED)
            mask_RGM = mask_RK.reshape(shape[0], num_groups, vnm.group)
            kept_RG4 = mask_RGM.gather(2, _of_rows(columns_BG4, vnm, shape[0]))
        else:
            columns_BG4 = mask_RK.new_zeros(num_blocks, num_groups, NUM_SHARED)
            kept_RG4 = mask_RK.new_zeros(shape[0], num_groups, NUM_SHARED)
        positions = kept_RG4.nonzero()[:, 2].view(shape[0], num_groups * NUM_KEPT)
        return {
            "values": matrix.values.view(shape[0], num_groups, NUM_KEPT),
            "positions": pack_fields(positions, POSITION_BITS),
            "shared": pack_numbers(columns_BG4.long().flatten(), _column_bits(vnm)),
        }

    def decode(
        self, arrays: Arrays, shape: tuple[int, ...], pattern: Pattern, where: str = "tensor"
    ) -> SparseMatrix:
        """Check columns below M and increasing, positions increasing, clean padding."""
        vnm, matrix = self.checked(pattern), matrix_shape(shape)
        num_rows = matrix[0]
        num_blocks, num_groups = vnm.grid(matrix)
        kept, num_fields = (num_rows, num_groups, NUM_KEPT), num_groups * NUM_KEPT
        stored: dict[str, tuple[int, ...]] = {
            "columns": (num_blocks, num_groups, NUM_SHARED),
            "shared": (_shared_bytes(vnm, matrix),),
        }
        name = "columns" if "columns" in arrays else "shared"
        ordered = {
            "values": (STORED_DTYPES, kept),
            "positions": ((torch.uint8,), (num_rows, row_bytes(num_fields, POSITION_BITS))),
            name: ((torch.uint8,), stored[name]),
        }
        values, packed, columns = expect_arrays(arrays, where, **ordered)
        check_spare_bits(packed, num_fields, POSITION_BITS, where)
        positions = unpack_fields(packed, num_fields, POSITION_BITS).reshape(kept)
        check_positions(positions, NUM_SHARED, where)
        of_columns = f"{where} (shared columns)"
        if name == "shared":
            count = num_blocks * num_groups * NUM_SHARED
            columns = unpack_numbers(columns, count, _column_bits(vnm), of_columns)
            columns = columns.view(stored["columns"])
        check_positions(columns, vnm.group, of_columns)
        mask_RGM = values.new_zeros(num_rows, num_groups, vnm.group, dtype=torch.bool)
        if values.numel():
            kept_RG2 = _of_rows(columns.long(), vnm, num_rows).gather(2, positions.long())
            mask_RGM.scatter_(2, kept_RG2, True)
        return with_mask(values, mask_RGM.view(matrix), shape, pattern)

    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Values, 2 bits each with rows padded to bytes, 4 columns per row block and group."""
        num_fields = self.checked(pattern).grid(shape)[1] * NUM_KEPT
        row = num_fields * itemsize + row_bytes(num_fields, POSITION_BITS)
        return shape[0] * row + _shared_bytes(self.checked(pattern), shape)


def _column_bits(vnm: VNM) -> int:
    """ceil(log2 M)."""
    return (vnm.group - 1).bit_length()


def _shared_bytes(vnm: VNM, shape: tuple[int, int]) -> int:
    """Bytes of 4 columns for each row block and group."""
    num_blocks, num_groups = vnm.grid(shape)
    return row_bytes(num_blocks * num_groups * NUM_SHARED, _column_bits(vnm))


def _of_rows(columns_BG4: torch.Tensor, vnm: VNM, num_rows: int) -> torch.Tensor:
    """int64 [R, G, 4]: the shared columns of every row's block."""
    return columns_BG4[torch.arange(num_rows, device=columns_BG4.device) // vnm.block_rows]
