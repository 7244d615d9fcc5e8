# SPDX-License-Identifier: Apache-2.0
"""Weights that are small integers times a scale: rounded on request, stored without loss.

A grid has one scale for `span` neighbouring columns of a row. Scales are bfloat16, so that
code x scale is exact in float32. Rounding makes the largest weight of a span the largest code;
solvers that round as they go (`prune/solvers/grid.py`) may leave it at a smaller one of int4.
Kernels that quantise such a weight again (`ops/int8.py`, `ops/few_int.py`) find the same weights.

Legend: R rows, K columns, G spans of a row.
"""

from dataclasses import dataclass

import torch

from gossamer.errors import FormatError, InputError
from gossamer.formats.nibbles import check_spare_bits, pack_fields, packed_width, unpack_fields

BITS = (8, 4)
SCALE_DTYPE = torch.bfloat16
# The integer kernels for few tokens share an int4 scale over whole runs of this many columns, and
# over as many of them as keep about that many weights.
_RUN, _KEPT_IN_SPAN = 64, 32
_NIBBLE_ZERO = 8
# Rows that are looked at before all of them are: nearly every weight is on no grid.
_SAMPLED_ROWS = 8


@dataclass(frozen=True)
class Grid:
    """Bits of a code, and how many columns share a scale."""

    bits: int
    span: int

    @property
    def limit(self) -> int:
        """The largest code; the smallest is its negative."""
        return int(2 ** (self.bits - 1) - 1)

    def num_spans(self, num_columns: int) -> int:
        """G: scales of a row."""
        return -(-num_columns // self.span)


def row_grid(num_columns: int) -> Grid:
    """int8 with one scale per row, as the int8 kernels have it."""
    return Grid(8, max(num_columns, 1))


def int4_grid(num_columns: int, density: float = 1.0) -> Grid:
    """int4 with the scales of the integer kernels for few tokens."""
    runs = max(-(-num_columns // _RUN), 1)
    span = min(_KEPT_IN_SPAN / max(density * _RUN, 1e-9), float(runs))
    return Grid(4, max(int(span + 0.5), 1) * _RUN)


def on_grid(weight_RK: torch.Tensor, grid: Grid) -> torch.Tensor:
    """The nearest weights on the grid; zeros stay zeros. Lossy: a step the user asks for."""
    if not bool(weight_RK.isfinite().all()):
        raise InputError("rounding: weights must be finite, found NaN or infinity.")
    tops_RG = _tops(weight_RK, grid)
    scales_RG = (tops_RG / grid.limit).to(SCALE_DTYPE)
    # Rounded up too far, the largest weight would not be the largest code.
    short = (tops_RG / scales_RG.float()).round() < grid.limit
    lower = (scales_RG.view(torch.int16) - 1).clamp(min=0).view(SCALE_DTYPE)
    scales_RG = torch.where(short & (scales_RG > 0), lower, scales_RG)
    rounded = decode(_codes(weight_RK, scales_RG, grid), scales_RG, grid)
    return rounded.to(weight_RK.dtype)


def find_grid(weight_RK: torch.Tensor) -> Grid | None:
    """The grid with the fewest bytes that holds every weight to the bit, None if there is none."""
    num_rows, num_columns = weight_RK.shape
    if weight_RK.dtype is not torch.float32 or not weight_RK.numel():
        return None
    runs = -(-num_columns // _RUN)
    spans = [count * _RUN for count in range(min(runs, 16), 0, -1)] + [32, 16]
    grids = [Grid(4, span) for span in spans] + [row_grid(num_columns)]
    sample = weight_RK[:: max(1, num_rows // _SAMPLED_ROWS)]
    return next((g for g in grids if _holds(g, sample) and _holds(g, weight_RK)), None)


def encode(weight_RK: torch.Tensor, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes int8 [R, K], scales bfloat16 [R, G]) of weights that are on the grid."""
    tops_RG = _tops(weight_RK, grid)
    scales_RG = (tops_RG / grid.limit).to(SCALE_DTYPE)
    # Of int4, the largest weight of a span may be any code.
    for largest in range(grid.limit - 1, 0, -1) if grid.bits == 4 else ():
        wrong_RG = _tops(
            decode(_codes(weight_RK, scales_RG, grid), scales_RG, grid) - weight_RK, grid
        )
        if not bool(wrong_RG.any()):
            break
        other_RG = (tops_RG / largest).to(SCALE_DTYPE)
        scales_RG = torch.where(wrong_RG > 0, other_RG, scales_RG)
    return _codes(weight_RK, scales_RG, grid), scales_RG


def decode(codes_RK: torch.Tensor, scales_RG: torch.Tensor, grid: Grid) -> torch.Tensor:
    """float32 [R, K]: code x scale, exact."""
    return codes_RK.float() * _spread(scales_RG.float(), grid, codes_RK.shape[1])


def check_scales(scales_RG: torch.Tensor, grid: Grid, where: str) -> None:
    """Raise FormatError unless every weight that the scales can give is finite."""
    largest = scales_RG.float() * grid.limit
    if not bool((largest.isfinite() & (scales_RG >= 0)).all()):
        raise FormatError(f"{where}: a scale is negative, NaN or too large.")


def pack_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes as a file holds them: int8 as they are, int4 two to a byte, as one row."""
    if bits == 8:
        return codes.to(torch.int8)
    return pack_fields((codes.reshape(1, -1) + _NIBBLE_ZERO).to(torch.uint8), 4).view(-1)


def unpack_codes(
    stored: torch.Tensor, shape: tuple[int, ...], grid: Grid, where: str
) -> torch.Tensor:
    """int8 codes of this shape; FormatError for numbers that `pack_codes` never writes."""
    count = torch.Size(shape).numel()
    if grid.bits == 4:
        if stored.dtype is not torch.uint8 or stored.shape != (packed_width(count, 4),):
            raise FormatError(
                f"{where}: {count} int4 codes are {packed_width(count, 4)} bytes of uint8, found"
                f" {stored.dtype} {list(stored.shape)}."
            )
        packed_1B = stored.view(1, -1)
        check_spare_bits(packed_1B, count, 4, where)
        fields = unpack_fields(packed_1B, count, 4)
        codes = (fields.to(torch.int8) - _NIBBLE_ZERO).view(shape)
    elif stored.dtype is torch.int8 and stored.shape == shape:
        codes = stored
    else:
        raise FormatError(
            f"{where}: codes must be int8 {list(shape)}, found {stored.dtype} {list(stored.shape)}."
        )
    if count and int(codes.min()) < -grid.limit:
        raise FormatError(f"{where}: a code is below {-grid.limit}.")
    return codes


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of `count` codes."""
    return packed_width(count, bits)


def _holds(grid: Grid, weight_RK: torch.Tensor) -> bool:
    codes_RK, scales_RG = encode(weight_RK, grid)
    same = decode(codes_RK, scales_RG, grid).view(torch.int32) == weight_RK.view(torch.int32)
    return bool(same.all())


def _codes(weight_RK: torch.Tensor, scales_RG: torch.Tensor, grid: Grid) -> torch.Tensor:
    steps = _spread(scales_RG.float(), grid, weight_RK.shape[1])
    codes = torch.where(steps > 0, weight_RK.float() / steps, 0.0).round()
    # NaN becomes 0, which is then found not to be the weight.
    return codes.nan_to_num(0.0).clamp(-grid.limit, grid.limit).to(torch.int8)


def _tops(weight_RK: torch.Tensor, grid: Grid) -> torch.Tensor:
    num_rows, num_columns = weight_RK.shape
    spans = grid.num_spans(num_columns)
    padded = weight_RK.new_zeros(num_rows, spans * grid.span, dtype=torch.float32)
    padded[:, :num_columns] = weight_RK.abs()
    return padded.view(num_rows, spans, grid.span).amax(dim=2)


def _spread(per_span_RG: torch.Tensor, grid: Grid, num_columns: int) -> torch.Tensor:
    return per_span_RG.repeat_interleave(grid.span, dim=1)[:, :num_columns]
