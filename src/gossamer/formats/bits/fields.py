# SPDX-License-Identifier: Apache-2.0
"""Small numbers packed into bytes row by row, lowest bits first; spare bits of a row are zero."""

import torch

from gossamer.errors import FormatError


def row_bytes(num_fields: int, field_bits: int = 1) -> int:
    """Bytes of a row of `num_fields` numbers of `field_bits` (1, 2, 4 or 8) bits."""
    return (num_fields * field_bits + 7) // 8


def pack_fields(fields_RF: torch.Tensor, field_bits: int) -> torch.Tensor:
    """uint8 [R, ceil(F * bits / 8)] of numbers [R, F] below 2**bits, on the same device."""
    num_rows, num_fields = fields_RF.shape
    per_byte = 8 // field_bits
    width = row_bytes(num_fields, field_bits)
    padded = fields_RF.new_zeros(num_rows, width * per_byte, dtype=torch.uint8)
    padded[:, :num_fields] = fields_RF
    planes = padded.view(num_rows, width, per_byte)
    # An OR of shifted planes keeps everything in uint8; a matmul with powers of two would not.
    packed = planes[..., 0].clone()
    for position in range(1, per_byte):
        packed |= planes[..., position] << (position * field_bits)
    return packed


def unpack_fields(packed_RB: torch.Tensor, num_fields: int, field_bits: int) -> torch.Tensor:
    """uint8 [R, F]: the numbers behind packed rows."""
    shifts = torch.arange(0, 8, field_bits, dtype=torch.uint8, device=packed_RB.device)
    planes = (packed_RB.unsqueeze(-1) >> shifts) & ((1 << field_bits) - 1)
    return planes.flatten(1)[:, :num_fields]


def check_spare_bits(packed_RB: torch.Tensor, num_fields: int, field_bits: int, where: str) -> None:
    """Raise FormatError if bits behind the last number of a row are set."""
    if spare_bits_are_set(packed_RB, num_fields * field_bits):
        raise FormatError(f"{where}: padding bits of the packed positions are set; expected zeros.")


def spare_bits_are_set(packed_RB: torch.Tensor, num_bits: int) -> bool:
    """Whether there is something behind the first `num_bits` of a row."""
    used = num_bits % 8
    return bool(used) and bool((packed_RB[:, -1] >> used).any())
