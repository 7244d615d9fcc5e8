# SPDX-License-Identifier: Apache-2.0
"""Small numbers packed into bytes row by row, lowest bits first; spare bits of a row are zero."""

import torch

from gossamer.errors import FormatError


def packed_width(num_fields: int, field_bits: int) -> int:
    """Bytes of a row of `num_fields` numbers of `field_bits` (2, 4 or 8) bits."""
    return (num_fields * field_bits + 7) // 8


def pack_fields(fields_RF: torch.Tensor, field_bits: int) -> torch.Tensor:
    """uint8 [R, ceil(F * bits / 8)] of numbers [R, F] below 2**bits."""
    num_rows, num_fields = fields_RF.shape
    per_byte = 8 // field_bits
    width = packed_width(num_fields, field_bits)
    padded = torch.zeros(num_rows, width * per_byte, dtype=torch.uint8, device=fields_RF.device)
    padded[:, :num_fields] = fields_RF
    planes = padded.view(num_rows, width, per_byte)
    packed = planes[..., 0].clone()
    for position in range(1, per_byte):
        packed |= planes[..., position] << (position * field_bits)
    return packed


def unpack_fields(packed_RB: torch.Tensor, num_fields: int, field_bits: int) -> torch.Tensor:
    """uint8 [R, F]: the numbers behind packed rows."""
    num_rows, width = packed_RB.shape
    per_byte = 8 // field_bits
    shifts = torch.arange(0, 8, field_bits, dtype=torch.uint8, device=packed_RB.device)
    planes = (packed_RB.unsqueeze(-1) >> shifts) & ((1 << field_bits) - 1)
    return planes.reshape(num_rows, width * per_byte)[:, :num_fields]


def check_spare_bits(packed_RB: torch.Tensor, num_fields: int, field_bits: int, where: str) -> None:
    """Raise FormatError if bits behind the last number of a row are set."""
    used = num_fields * field_bits % 8
    if used and bool((packed_RB[:, -1] >> used).any()):
        raise FormatError(f"{where}: padding bits of the packed positions are set; expected zeros.")
