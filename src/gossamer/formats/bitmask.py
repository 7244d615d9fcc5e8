# SPDX-License-Identifier: Apache-2.0
"""bitmask: one bit per weight says whether it is kept. Canonical; stores any pattern.

Arrays: `values` [nnz] in row-major order, `bitmask` uint8 [R, ceil(K/8)] in little bit order.
The smallest format from about 6 % to 94 % density; bit-identical to the arrays of the former
sparse-bitmask files of compressed-tensors. Bytes: nnz * itemsize + R * ceil(K/8).
"""

import torch

from gossamer.errors import FormatError
from gossamer.formats.base import (
    VALUE_DTYPES,
    Arrays,
    Format,
    check_mask_is_legal,
    expect_array,
    expect_only,
)
from gossamer.formats.bits import check_bits, count_bits, pack_bits, row_bytes, unpack_bits
from gossamer.patterns.base import Pattern
from gossamer.patterns.unstructured import Unstructured


class Bitmask(Format):
    """Kept values in row-major order beside a packed mask."""

    name = "bitmask"

    def supports(self, pattern: Pattern) -> bool:
        """Every pattern."""
        return True

    def pack(
        self, weight_RK: torch.Tensor, mask_RK: torch.Tensor, pattern: Pattern
    ) -> dict[str, torch.Tensor]:
        """`values` and `bitmask`."""
        return {"values": weight_RK[mask_RK], "bitmask": pack_bits(mask_RK)}

    def validate(
        self, arrays: Arrays, shape: tuple[int, int], pattern: Pattern, where: str = "tensor"
    ) -> None:
        """Check sizes, clean padding, as many set bits as values, and the pattern."""
        expect_only(arrays, ("values", "bitmask"), where)
        values = expect_array(arrays, "values", VALUE_DTYPES, (None,), where)
        wanted = (shape[0], row_bytes(shape[1]))
        bits_RB = expect_array(arrays, "bitmask", (torch.uint8,), wanted, where)
        check_bits(bits_RB, shape, where)
        num_set = count_bits(bits_RB)
        if num_set != len(values):
            raise FormatError(
                f"{where}: the bitmask keeps {num_set} weights, but there are {len(values)} values."
            )
        if not isinstance(pattern, Unstructured):
            check_mask_is_legal(unpack_bits(bits_RB, shape[1]), pattern, where)

    def unpack(
        self, arrays: Arrays, shape: tuple[int, int], pattern: Pattern
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(weight, mask)."""
        mask_RK = unpack_bits(arrays["bitmask"], shape[1])
        values = arrays["values"]
        return values.new_zeros(shape).masked_scatter_(mask_RK, values), mask_RK

    def nbytes(self, shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> int:
        """Values plus one bit per weight, rows padded to bytes."""
        return nnz * itemsize + shape[0] * row_bytes(shape[1])
