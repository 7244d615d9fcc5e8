# SPDX-License-Identifier: Apache-2.0
"""Which N of M are kept, as one number in the fewest whole bits: ceil(log2 C(M, N)).

The C(M, N) choices are numbered in the combinatorial number system: increasing positions
p1 < ... < pN have the number C(p1, 1) + ... + C(pN, N). 2:4 has six choices, in 3 bits; as one bit
for each of the four weights it would take 4. Numbers follow one another without gaps; the last byte
is filled with zero bits.

Legend: F choices, b bits of each, N kept positions, M positions there are.
"""

from math import comb

import torch

from gossamer.errors import FormatError
from gossamer.formats.bits import check_spare_bits, pack_bits, unpack_bits


def choice_bits(num_kept: int, group: int) -> int:
    """ceil(log2 C(M, N)); 0 where there is nothing to choose."""
    return (comb(group, num_kept) - 1).bit_length()


def pack_numbers(numbers_F: torch.Tensor, field_bits: int) -> torch.Tensor:
    """uint8 [ceil(F * b / 8)] of numbers below 2**b, lowest bits first, on the same device."""
    shifts = range(field_bits)
    if not shifts:
        return torch.zeros(0, dtype=torch.uint8, device=numbers_F.device)
    planes = [(numbers_F >> shift & 1).bool() for shift in shifts]
    return pack_bits(torch.stack(planes, dim=-1).view(1, -1))[0]


def unpack_numbers(
    packed_B: torch.Tensor, num_fields: int, field_bits: int, where: str
) -> torch.Tensor:
    """int64 [F]: the numbers behind packed bytes; FormatError if spare bits are set."""
    check_spare_bits(packed_B.view(1, -1), num_fields, field_bits, where)
    numbers_F = torch.zeros(num_fields, dtype=torch.int64, device=packed_B.device)
    if not num_fields or not field_bits:
        return numbers_F
    bits_Fb = unpack_bits(packed_B.view(1, -1), num_fields * field_bits).view(-1, field_bits)
    for shift in range(field_bits):
        numbers_F |= bits_Fb[:, shift].long() << shift
    return numbers_F


def pack_choices(positions_FN: torch.Tensor, group: int) -> torch.Tensor:
    """uint8 [ceil(F * b / 8)]: the numbers of increasing positions below M, without gaps."""
    num_kept = positions_FN.shape[1]
    numbers_F = torch.zeros(len(positions_FN), dtype=torch.int64, device=positions_FN.device)
    for slot in range(num_kept):
        table = _binomials(group, slot + 1, positions_FN.device)
        numbers_F += table[positions_FN[:, slot].long()]
    return pack_numbers(numbers_F, choice_bits(num_kept, group))


def unpack_choices(
    packed_B: torch.Tensor, num_fields: int, num_kept: int, group: int, where: str
) -> torch.Tensor:
    """int64 [F, N]: the positions behind packed numbers; FormatError for a number that is none."""
    rest_F = unpack_numbers(packed_B, num_fields, choice_bits(num_kept, group), where)
    check_numbers(rest_F, comb(group, num_kept), where)
    positions_FN = rest_F.new_empty(num_fields, num_kept)
    for slot in reversed(range(num_kept)):
        # The largest position whose binomial fits; what is left belongs to the lower positions.
        table = _binomials(group, slot + 1, packed_B.device)
        positions = torch.searchsorted(table, rest_F, right=True) - 1
        positions_FN[:, slot] = positions
        rest_F = rest_F - table[positions]
    return positions_FN


def check_numbers(numbers_F: torch.Tensor, limit: int, where: str) -> None:
    """Raise FormatError for a number of a choice that does not exist."""
    outside = (numbers_F >= limit).nonzero()
    if len(outside):
        place = int(outside[0])
        raise FormatError(
            f"{where}: choice {int(numbers_F[place])} of group {place} is outside 0 to {limit - 1}."
        )


def _binomials(group: int, chosen: int, device: torch.device) -> torch.Tensor:
    """int64 [M]: C(p, chosen) for p below M."""
    return torch.tensor([comb(position, chosen) for position in range(group)], device=device)
