# SPDX-License-Identifier: Apache-2.0
"""Numbers of a row as real integers: a byte each, or two in a byte, as packed tables hold them.

A number v travels as q = round(v / S), S one scale per table, and is S q again where it arrives.
With S = largest / 127 (or / 7) nothing is clipped, and nearest rounding errs by S / 2 at most.
Stochastic rounding errs by S at most and by nothing on average.

The kernels of tables make the integers and add them up as they came, without floats of each rank.

Legend: N rows, D width, B bytes of a row.
"""

from collections.abc import Sequence

import torch

from gossamer.ops.table import Bags, Rounding, Rows, encode_rows, pool
from gossamer.training.distributed.table_traffic import ID_BYTES, TableWire, row_bytes

# The integers of each wire; the scale is symmetric.
_CODES = {"int8": Rounding(8), "int4": Rounding(4)}
LARGEST = {wire: codes.highest for wire, codes in _CODES.items()}
_TINY = torch.finfo(torch.float32).tiny


def value_bytes(width: int, wire: TableWire, dtype: torch.dtype) -> int:
    """Of one row, without its id."""
    return row_bytes(width, wire, dtype.itemsize) - ID_BYTES


def scales_of(peaks: torch.Tensor, wire: TableWire) -> torch.Tensor:
    """Scales for tables whose largest numbers are `peaks`; never 0, so that all can be divided."""
    return (peaks.float() / LARGEST[wire]).clamp_(min=_TINY)


def encode(
    tables: Sequence[torch.Tensor],
    scales: Sequence[float],
    wire: TableWire,
    generator: torch.Generator | None,
) -> list[torch.Tensor]:
    """Bytes of rows, uint8 [N, B], of each table.

    Args:
        tables: finite numbers [N, D], at most `LARGEST` scales large.
        scales: of each table; not used by "full".
        wire: how they travel.
        generator: of stochastic rounding; None rounds to the nearest.
    """
    if wire == "full":
        return [values_ND.contiguous().view(torch.uint8) for values_ND in tables]
    if generator is None:
        return [
            encode_rows(values_ND, _CODES[wire], scale)[0]
            for values_ND, scale in zip(tables, scales, strict=True)
        ]
    return [
        _drawn(values_ND, scale, _CODES[wire], generator)
        for values_ND, scale in zip(tables, scales, strict=True)
    ]


def _drawn(
    values_ND: torch.Tensor, scale: float, codes: Rounding, generator: torch.Generator
) -> torch.Tensor:
    steps_ND = values_ND.float() / scale
    # The largest number may be one rounding above the largest code before a draw is added.
    steps_ND.add_(torch.rand(steps_ND.shape, generator=generator)).floor_()
    steps_ND.clamp_(-codes.highest, codes.highest)
    # Whole numbers stay what they are with a scale of 1.
    return encode_rows(steps_ND, codes, 1.0)[0]


def decode(
    raw: torch.Tensor, width: int, wire: TableWire, dtype: torch.dtype, *, coded: bool = False
) -> torch.Tensor:
    """Rows of what `encode` made: numbers as they were, or integers that want their scale.

    With `coded` integers stay codes, uint8 [N, B], which `add_codes` takes.
    """
    if wire == "full":
        if raw.storage_offset() % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).view(-1, width)
    codes_NB = raw.view(-1, _CODES[wire].row_bytes(width))
    if coded:
        return codes_NB
    return Rows(codes_NB, width, _CODES[wire], torch.ones(1)).floats().to(dtype)


def add_codes(
    codes_NB: torch.Tensor,
    order_N: torch.Tensor,
    first_U: torch.Tensor,
    *,
    width: int,
    wire: TableWire,
) -> torch.Tensor:
    """Sums of integers, float32 [U, D]: exact, so that their order does not matter.

    Args:
        codes_NB: rows.
        order_N: of the rows, those of one sum side by side.
        first_U: where each sum begins in that order.
        width: D.
        wire: how they came.
    """
    rows = Rows(codes_NB, width, _CODES[wire], torch.ones(1))
    return pool(rows, Bags.of(order_N, first_U))[0]
