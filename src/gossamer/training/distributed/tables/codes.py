# SPDX-License-Identifier: Apache-2.0
"""Numbers of a row as real integers: a byte each, or two in a byte.

A number v travels as q = round(v / S), S one scale per table, and is S q again where it arrives.
With S = largest / 127 (or / 7) nothing is clipped, and nearest rounding errs by S / 2 at most.
Stochastic rounding errs by S at most and by nothing on average.

Legend: N rows, D width.
"""

import torch

from gossamer.training.distributed.table_traffic import ID_BYTES, TableWire, row_bytes

# The largest integer of each wire; the scale is symmetric.
LARGEST = {"int8": 127, "int4": 7}
_TINY = torch.finfo(torch.float32).tiny


def value_bytes(width: int, wire: TableWire, dtype: torch.dtype) -> int:
    """Of one row, without its id."""
    return row_bytes(width, wire, dtype.itemsize) - ID_BYTES


def scales_of(peaks: torch.Tensor, wire: TableWire) -> torch.Tensor:
    """Scales for tables whose largest numbers are `peaks`; never 0, so that all can be divided."""
    return (peaks.float() / LARGEST[wire]).clamp_(min=_TINY)


def encode(
    values_ND: torch.Tensor,
    scales_N: torch.Tensor,
    wire: TableWire,
    generator: torch.Generator | None,
) -> torch.Tensor:
    """Bytes of rows, uint8 [N, bytes].

    Args:
        values_ND: finite numbers, at most `LARGEST` scales large.
        scales_N: of each row; not used by "full".
        wire: how they travel.
        generator: of stochastic rounding; None rounds to the nearest.
    """
    if wire == "full":
        return values_ND.contiguous().view(torch.uint8)
    most = LARGEST[wire]
    steps_ND = values_ND.float() / scales_N[:, None]
    if generator is None:
        steps_ND.round_()
    else:
        # The largest number may be one rounding above `most` before a draw is added.
        steps_ND.add_(torch.rand(steps_ND.shape, generator=generator)).floor_().clamp_(-most, most)
    codes_ND = steps_ND.to(torch.int8)
    if wire == "int8":
        return codes_ND.view(torch.uint8)
    if codes_ND.shape[1] % 2:
        codes_ND = torch.nn.functional.pad(codes_ND, (0, 1))
    pairs = codes_ND.view(torch.int16)
    # The low nibble is the even place: int16 is little endian here as on every CPU we run on.
    return ((pairs & 15) | ((pairs >> 4) & 0xF0)).to(torch.uint8)


def decode(raw: torch.Tensor, width: int, wire: TableWire, dtype: torch.dtype) -> torch.Tensor:
    """Rows of what `encode` made: numbers as they were, or integers that want their scale."""
    if wire == "full":
        if raw.storage_offset() % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).view(-1, width)
    if wire == "int8":
        return raw.view(torch.int8).view(-1, width).to(dtype)
    pairs = raw.view(torch.int8).view(-1, -(-width // 2))
    # Shifts of int8 keep the sign.
    codes = torch.stack(((pairs << 4) >> 4, pairs >> 4), 2)
    return codes.flatten(1)[:, :width].to(dtype)
