# SPDX-License-Identifier: Apache-2.0
"""Packed bool masks: one bit per weight, rows padded to whole bytes, little bit order.

Column k of a row is bit k % 8 of byte k // 8; padding bits are zero. This is the arrangement that
numpy's packbits(bitorder="little") gives along the last dimension.
"""

import torch

from gossamer.errors import FormatError
from gossamer.formats.bits.fields import pack_fields, row_bytes, spare_bits_are_set


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
    if spare_bits_are_set(bits_RB, shape[1]):
        raise FormatError(f"{where}: padding bits beyond column {shape[1]} are set.")
