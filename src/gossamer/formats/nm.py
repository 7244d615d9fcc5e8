# SPDX-License-Identifier: Apache-2.0
"""nm: N values per group of M and one number for each group: which N of the M it keeps.

Legend: G = K/M groups of a row, b = ceil(log2 C(M, N)) bits of a choice: 3 for 2:4. Arrays:
`values` [R, G, N]; `choices` uint8 [ceil(R*G*b/8)], see `choices.py`.
Bytes: R*G*N * itemsize + ceil(R*G*b / 8).

Files written before have `positions` in the place of choices: uint8, strictly increasing inside a
group, packed row by row: 4 bits each with the low nibble first [R, ceil(G*N/2)] where M <= 16, one
byte each [R, G*N] above. They are read, and no longer written.
"""

import torch

from gossamer.errors import FormatError
from gossamer.formats.base import STORED_DTYPES, Arrays, OwnFormat, expect_arrays, with_mask
from gossamer.formats.bits import check_spare_bits, row_bytes, unpack_fields
from gossamer.formats.choices import choice_bits, pack_choices, unpack_choices
from gossamer.formats.matrix import SparseMatrix, matrix_shape
from gossamer.patterns import NM, Pattern


class NMFormat(OwnFormat[NM]):
    """Values of an N:M weight and the choice of each of its groups."""

    name = "nm"
    own = NM
    stores = "N:M"

    def encode(self, matrix: SparseMatrix) -> dict[str, torch.Tensor]:
        """`values` and `choices`."""
        nm, kept = self._sizes(matrix.pattern, matrix.shape)
        positions = matrix.mask().view(*kept[:2], nm.group).nonzero()[:, 2]
        return {
            "values": matrix.values.view(kept),
            "choices": pack_choices(positions.view(-1, nm.num_kept), nm.group),
        }

    def decode(
        self, arrays: Arrays, shape: tuple[int, ...], pattern: Pattern, where: str = "tensor"
    ) -> SparseMatrix:
        """Check that each choice exists, and clean padding."""
        matrix = matrix_shape(shape)
        nm, kept = self._sizes(pattern, matrix)
        if "positions" in arrays:
            values, positions = _read_positions(arrays, nm, kept, where)
        else:
            num_groups, bits = kept[0] * kept[1], choice_bits(nm.num_kept, nm.group)
            values, packed = expect_arrays(
                arrays,
                where,
                values=(STORED_DTYPES, kept),
                choices=((torch.uint8,), (row_bytes(num_groups, bits),)),
            )
            positions = unpack_choices(packed, num_groups, nm.num_kept, nm.group, where).view(kept)
        mask_RGM = values.new_zeros(*kept[:2], nm.group, dtype=torch.bool)
        mask_RK = mask_RGM.scatter_(2, positions, True).view(matrix)
        return with_mask(values, mask_RK, shape, pattern)

    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Values plus ceil(log2 C(M, N)) bits for each group, padded to bytes once."""
        nm, (num_rows, num_groups, num_kept) = self._sizes(pattern, shape)
        bits = choice_bits(num_kept, nm.group)
        groups = num_rows * num_groups
        return groups * num_kept * itemsize + row_bytes(groups, bits)

    def _sizes(self, pattern: Pattern, shape: tuple[int, int]) -> tuple[NM, tuple[int, int, int]]:
        """The pattern, and [R, G, N] of the values."""
        nm = self.checked(pattern)
        return nm, (shape[0], shape[1] // nm.group, nm.num_kept)


def _read_positions(
    arrays: Arrays, nm: NM, kept: tuple[int, int, int], where: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and int64 positions [R, G, N] of a file that has positions."""
    num_fields, bits = kept[1] * kept[2], 4 if nm.group <= 16 else 8
    values, packed = expect_arrays(
        arrays,
        where,
        values=(STORED_DTYPES, kept),
        positions=((torch.uint8,), (kept[0], row_bytes(num_fields, bits))),
    )
    check_spare_bits(packed, num_fields, bits, where)
    positions = unpack_fields(packed, num_fields, bits).reshape(kept)
    check_positions(positions, nm.group, where)
    return values, positions.long()


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
