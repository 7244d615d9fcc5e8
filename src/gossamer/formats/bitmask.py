# SPDX-License-Identifier: Apache-2.0
"""bitmask: one bit per weight says whether it is kept. Canonical; stores any pattern.

Arrays: `values` [nnz] in row-major order, `bitmask` uint8 [R, ceil(K/8)] in little bit order,
which is left out where every weight is kept.
The smallest format from about 6 % to 94 % density; bit-identical to the arrays of the former
sparse-bitmask files of compressed-tensors. Bytes: nnz * itemsize + R * ceil(K/8).
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
)
from gossamer.formats.bits import check_bits, row_bytes
from gossamer.formats.matrix import Positions, SparseMatrix, matrix_shape
from gossamer.patterns import Pattern, Unstructured


class Bitmask(Format):
    """Kept values in row-major order beside a packed mask."""

    name = "bitmask"

    def supports(self, pattern: Pattern) -> bool:
        """Every pattern."""
        return True

    def encode(self, matrix: SparseMatrix) -> dict[str, torch.Tensor]:
        """`values` and `bitmask`; no bits where everything is kept."""
        bits = matrix.positions.mask_bits
        return {"values": matrix.values} | ({} if bits is None else {"bitmask": bits})

    def decode(
        self, arrays: Arrays, shape: tuple[int, ...], pattern: Pattern, where: str = "tensor"
    ) -> SparseMatrix:
        """Check sizes, clean padding, as many set bits as values, and the pattern."""
        rows, columns = sizes = matrix_shape(shape)
        expect_only(arrays, ("values", "bitmask"), where)
        values = expect_array(arrays, "values", STORED_DTYPES, (None,), where)
        bits_RB = None
        if "bitmask" in arrays or len(values) != rows * columns:
            wanted = (rows, row_bytes(columns))
            bits_RB = expect_array(arrays, "bitmask", (torch.uint8,), wanted, where)
            check_bits(bits_RB, sizes, where)
        positions = Positions(bits_RB, shape, pattern)
        if positions.nnz != len(values):
            raise FormatError(
                f"{where}: the bitmask keeps {positions.nnz} weights, but there are {len(values)}"
                " values."
            )
        matrix = SparseMatrix(positions, values)
        if not isinstance(pattern, Unstructured):
            check_mask_is_legal(matrix.mask(), pattern, where)
        return matrix

    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Values plus one bit per weight, rows padded to bytes; no bits if all are kept."""
        bits = 0 if nnz == shape[0] * shape[1] else shape[0] * row_bytes(shape[1])
        return nnz * itemsize + bits
