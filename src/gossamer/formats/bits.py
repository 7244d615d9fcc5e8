# SPDX-License-Identifier: Apache-2.0
"""Numbers of a few bits packed into bytes, row by row, lowest bits first; spare bits are zero.

A mask is such numbers of one bit: `pack_bits` and `unpack_bits`. Column k of a row is bit k % 8 of
byte k // 8, as numpy's packbits(bitorder="little") arranges it along the last dimension.
`pack_fields` and `unpack_fields` are for positions and codes of 2, 4 or 8 bits; `choices` has those
of any number of bits.
"""

import torch

from gossamer.errors import FormatError

__all__ = [
    "check_bits",
    "check_spare_bits",
    "count_bits",
    "pack_bits",
    "pack_fields",
    "row_bytes",
    "unpack_bits",
    "unpack_fields",
]


def row_bytes(num_fields: int, field_bits: int = 1) -> int:
    """Bytes of a row of `num_fields` numbers of `field_bits` bits."""
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
    if _spare_bits_are_set(packed_RB, num_fields * field_bits):
        raise FormatError(f"{where}: padding bits of the packed positions are set; expected zeros.")


def _spare_bits_are_set(packed_RB: torch.Tensor, num_bits: int) -> bool:
    """Whether there is something behind the first `num_bits` of a row."""
    used = num_bits % 8
    return bool(used) and bool((packed_RB[:, -1] >> used).any())


def pack_bits(mask_RK: torch.Tensor) -> torch.Tensor:
    """uint8 [R, ceil(K/8)] of a bool mask [R, K], on the same device."""
    return pack_fields(mask_RK, 1)


# The eight bools of every byte value, as one int64 each: unpacking is then a single lookup, ten
# times faster on a CPU than shifting out bit planes.
_OCTETS = ((torch.arange(256)[:, None] >> torch.arange(8)) & 1).to(torch.uint8).view(torch.int64)


def unpack_bits(bits_RB: torch.Tensor, num_columns: int) -> torch.Tensor:
    """The bool mask [R, K] behind packed rows."""
    num_rows, width = bits_RB.shape
    octets = _OCTETS.flatten().to(bits_RB.device).index_select(0, bits_RB.flatten().int())
    return octets.view(torch.bool).view(num_rows, width * 8)[:, :num_columns].contiguous()


def count_bits(bits_RB: torch.Tensor) -> int:
    """How many bits are set, padding included; O(bytes), nothing of the dense size is allocated."""
    histogram = torch.bincount(bits_RB.flatten(), minlength=256)
    weights = torch.tensor([value.bit_count() for value in range(256)], device=bits_RB.device)
    return int((histogram * weights).sum())


def check_bits(bits_RB: torch.Tensor, shape: tuple[int, int], where: str) -> None:
    """Raise FormatError unless the packed mask has the right type and size and clean padding."""
    wanted = (shape[0], row_bytes(shape[1]))
    if bits_RB.dtype is not torch.uint8 or tuple(bits_RB.shape) != wanted:
        raise FormatError(
            f"{where}: a packed mask of a {list(shape)} weight must be uint8 {list(wanted)},"
            f" got {bits_RB.dtype} {list(bits_RB.shape)}."
        )
    if _spare_bits_are_set(bits_RB, shape[1]):
        raise FormatError(f"{where}: padding bits beyond column {shape[1]} are set.")
