# SPDX-License-Identifier: Apache-2.0
"""A float32 master as a bfloat16 weight and the low bits that are missing.

The weight is the master rounded to 16 bits, halves away from zero: `(bits + 0x8000) >> 16`. The low
half is kept as it is, read as a signed number. Then `bits == (weight << 16) + low` for every finite
number: the weight was rounded up exactly where the signed low half is negative. A remainder against
`.to(bfloat16)` (halves to even) would need 17 bits: it overflows on ties.

With 8 low bits the master has 24: what lies below is carried by a dither, see `pieces.py`.
"""

import torch

_HALF = 0x8000
_LOW_8 = 0xFF


def join(weight: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """The float32 master of bfloat16 weights and their low bits (int16, or int8 for 24 bits)."""
    bits = weight.view(torch.int16).to(torch.int32).bitwise_left_shift_(16)
    low_bits = low.to(torch.int32)
    if low.dtype is torch.int8:
        low_bits.bitwise_left_shift_(8)
    return bits.add_(low_bits).view(torch.float32)


def rounded(master: torch.Tensor) -> torch.Tensor:
    """The bfloat16 weight of a float32 master: nearest, halves away from zero; NaN stays NaN."""
    return _upper(_bits(master))


def split(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """bfloat16 weight and int16 low half of a float32 master; `join` gives it back bit by bit."""
    bits = _bits(master)
    # Conversion to fewer bits keeps the lowest ones.
    return _upper(bits), bits.to(torch.int16)


def split_24(
    master: torch.Tensor, dither: torch.Tensor | float
) -> tuple[torch.Tensor, torch.Tensor]:
    """bfloat16 weight and int8 remainder of a master cut to 24 bits after adding a dither.

    Args:
        master: float32.
        dither: in [0, 1), in units of the last kept bit; 0.5 rounds to nearest.
    """
    addend = torch.as_tensor(dither, device=master.device).mul(_LOW_8 + 1).to(torch.int32)
    # Infinity stays infinity: at most 255 is added to zeros and cut off again. The largest finite
    # numbers may be rounded to it, as in bfloat16.
    cut = _bits(master).add(addend.clamp_(max=_LOW_8)).bitwise_and_(~_LOW_8)
    return _upper(cut), cut.bitwise_right_shift(8).to(torch.int8)


def _upper(bits: torch.Tensor) -> torch.Tensor:
    return bits.add(_HALF).bitwise_right_shift_(16).to(torch.int16).view(torch.bfloat16)


def _bits(master: torch.Tensor) -> torch.Tensor:
    # A NaN whose lower bits are all set would be rounded up into a zero of the other sign.
    return torch.where(master.isnan(), torch.nan, master).view(torch.int32)
