# SPDX-License-Identifier: Apache-2.0
"""nm: N values per group of M with their positions inside the group.

Legend: G = K/M groups of a row. Arrays: `values` [R, G, N]; `positions` uint8, strictly increasing
inside a group, packed row by row: 4 bits each with the low nibble first [R, ceil(G*N/2)] where
M <= 16, one byte each [R, G*N] above. Bytes: R*G*N * itemsize + R * row of positions.
"""

import torch

from gossamer.errors import FormatError
from gossamer.formats.base import (
    STORED_DTYPES,
    Arrays,
    Format,
    expect_array,
    expect_only,
    with_mask,
)
from gossamer.formats.matrix import SparseMatrix, matrix_shape
from gossamer.formats.nibbles import check_spare_bits, pack_fields, packed_width, unpack_fields
from gossamer.patterns import NM, Pattern


class NMFormat(Format):
    """Values and positions of an N:M weight, both of fixed size per row."""

    name = "nm"

    def supports(self, pattern: Pattern) -> bool:
        """N:M only."""
        return isinstance(pattern, NM)

    def encode(self, matrix: SparseMatrix) -> dict[str, torch.Tensor]:
        """`values` and `positions`."""
        nm, num_groups = _geometry(matrix.pattern, matrix.shape[1])
        num_rows = matrix.shape[0]
        groups_RGM = matrix.mask().view(num_rows, num_groups, nm.group)
        positions = groups_RGM.nonzero()[:, 2].view(num_rows, num_groups * nm.num_kept)
        return {
            "values": matrix.values.view(num_rows, num_groups, nm.num_kept),
            "positions": pack_fields(positions, _field_bits(nm)),
        }

    def decode(
        self, arrays: Arrays, shape: tuple[int, ...], pattern: Pattern, where: str = "tensor"
    ) -> SparseMatrix:
        """Check positions below M, strictly increasing inside each group, clean padding."""
        num_rows, num_columns = matrix = matrix_shape(shape)
        nm, num_groups = _geometry(pattern, num_columns)
        expect_only(arrays, ("values", "positions"), where)
        wanted = (num_rows, num_groups, nm.num_kept)
        values = expect_array(arrays, "values", STORED_DTYPES, wanted, where)
        num_fields, bits = num_groups * nm.num_kept, _field_bits(nm)
        width = packed_width(num_fields, bits)
        packed = expect_array(arrays, "positions", (torch.uint8,), (num_rows, width), where)
        check_spare_bits(packed, num_fields, bits, where)
        positions = unpack_fields(packed, num_fields, bits).reshape(wanted)
        check_positions(positions, nm.group, where)
        mask_RGM = values.new_zeros(num_rows, num_groups, nm.group, dtype=torch.bool)
        mask_RK = mask_RGM.scatter_(2, positions.long(), True).view(matrix)
        return with_mask(values, mask_RK, shape, pattern)

    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Values plus 4 or 8 bits each, rows padded to bytes."""
        nm, num_groups = _geometry(pattern, shape[1])
        num_fields = num_groups * nm.num_kept
        return shape[0] * (num_fields * itemsize + packed_width(num_fields, _field_bits(nm)))


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


def _geometry(pattern: Pattern, num_columns: int) -> tuple[NM, int]:
    if not isinstance(pattern, NM):
        raise FormatError(f"format nm stores N:M patterns only, got {pattern}.")
    return pattern, num_columns // pattern.group


def _field_bits(nm: NM) -> int:
    return 4 if nm.group <= 16 else 8
