# SPDX-License-Identifier: Apache-2.0
"""nm: N values per group of M with their positions inside the group.

Legend: G = K/M groups of a row. Arrays: `values` [R, G, N]; `positions` uint8, strictly increasing
inside a group, packed row by row: 4 bits each with the low nibble first [R, ceil(G*N/2)] where
M <= 16, one byte each [R, G*N] above. Bytes: R*G*N * itemsize + R * row of positions.
"""

import torch

from gossamer.errors import FormatError
from gossamer.formats.base import STORED_DTYPES, Arrays, OwnFormat, expect_arrays, with_mask
from gossamer.formats.bits import check_spare_bits, pack_fields, row_bytes, unpack_fields
from gossamer.formats.matrix import SparseMatrix, matrix_shape
from gossamer.patterns import NM, Pattern


class NMFormat(OwnFormat[NM]):
    """Values and positions of an N:M weight, both of fixed size per row."""

    name = "nm"
    own = NM
    stores = "N:M"

    def encode(self, matrix: SparseMatrix) -> dict[str, torch.Tensor]:
        """`values` and `positions`."""
        nm, bits, kept = self._sizes(matrix.pattern, matrix.shape)
        positions = matrix.mask().view(*kept[:2], nm.group).nonzero()[:, 2].view(kept)
        return {
            "values": matrix.values.view(kept),
            "positions": pack_fields(positions.flatten(1), bits),
        }

    def decode(
        self, arrays: Arrays, shape: tuple[int, ...], pattern: Pattern, where: str = "tensor"
    ) -> SparseMatrix:
        """Check positions below M, strictly increasing inside each group, clean padding."""
        matrix = matrix_shape(shape)
        nm, bits, kept = self._sizes(pattern, matrix)
        num_fields = kept[1] * nm.num_kept
        values, packed = expect_arrays(
            arrays,
            where,
            values=(STORED_DTYPES, kept),
            positions=((torch.uint8,), (matrix[0], row_bytes(num_fields, bits))),
        )
        check_spare_bits(packed, num_fields, bits, where)
        positions = unpack_fields(packed, num_fields, bits).reshape(kept)
        check_positions(positions, nm.group, where)
        mask_RGM = values.new_zeros(*kept[:2], nm.group, dtype=torch.bool)
        mask_RK = mask_RGM.scatter_(2, positions.long(), True).view(matrix)
        return with_mask(values, mask_RK, shape, pattern)

    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Values plus 4 or 8 bits each, rows padded to bytes."""
        nm, bits, kept = self._sizes(pattern, shape)
        num_fields = kept[1] * nm.num_kept
        return shape[0] * (num_fields * itemsize + row_bytes(num_fields, bits))

    def _sizes(
        self, pattern: Pattern, shape: tuple[int, int]
    ) -> tuple[NM, int, tuple[int, int, int]]:
        """The pattern, bits of a position, and [R, G, N] of the values."""
        nm = self.checked(pattern)
        kept = shape[0], shape[1] // nm.group, nm.num_kept
        return nm, 4 if nm.group <= 16 else 8, kept


def check_positions(positions_RGN: torch.Tensor, limit: int, where: str) -> None:
    """Raise FormatError unless uint8 positions are below `limit` and increase in each group."""
    outside = (positions_RGN >= limit).nonzero() if limit <= 255 else positions_RGN.new_empty(0)
    if len(outside):
        row, group, slot = outside[0].tolist()
        raise FormatError(
            f"{where}: position {int(positions_RGN[row, group, slot])} of row {row}, group {group}"
            f" is outside 0 to {limit - 1}."
        )
    wrong = (positions_RGN[..., 1:] <= positions_RGN[..., :-1]).nonzero()
    if len(wrong):
        row, group, _ = wrong[0].tolist()
        raise FormatError(
            f"{where}: positions of row {row}, group {group} must strictly increase, found"
            f" {positions_RGN[row, group].tolist()}."
        )
