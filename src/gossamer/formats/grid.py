# SPDX-License-Identifier: Apache-2.0
"""Weights that are small integers times a scale: rounded on request, stored without loss.

A grid has one scale for `span` neighbouring columns of a row. Scales are bfloat16, so that
code x scale is exact in float32. Rounding makes the largest weight of a span the largest code;
solvers that round as they go (`pruning/solvers/grid.py`) may leave it at a smaller one of int4.
Kernels that quantise such a weight again (`ops/linear/int8.py`, `ops/linear/few_int.py`) find the
same weights. int4 of weights without a mask may have offsets besides (`formats/offset_grid.py`).

Legend: R rows, K columns, G spans of a row.
"""

from dataclasses import dataclass

import torch

from gossamer.errors import FormatError, InputError
from gossamer.formats import offset_grid
from gossamer.formats.nibbles import check_spare_bits, pack_fields, packed_width, unpack_fields

BITS = (8, 4)
# Codes int8 [R, K], scales [R, G], offsets [R, G] where the grid has them.
Coded = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
SCALE_DTYPE = torch.bfloat16
# The integer kernels for few tokens share an int4 scale over whole runs of this many columns, and
# over as many of them as keep about that many weights.
_RUN, _KEPT_IN_SPAN = 64, 32
_NIBBLE_ZERO = 8
# Rows that are looked at before all of them are: nearly every weight is on no grid.
_SAMPLED_ROWS = 8


@dataclass(frozen=True)
class Grid:
    """Bits of a code, how many columns share a scale, and whether they share an offset besides."""

    bits: int
    span: int
    has_offsets: bool = False

    @property
    def limit(self) -> int:
        """The largest code; the smallest is its negative, with offsets 0."""
        return offset_grid.TOP if self.has_offsets else int(2 ** (self.bits - 1) - 1)

    @property
    def scale_dtype(self) -> torch.dtype:
        """Of scales, and of offsets."""
        return offset_grid.DTYPE if self.has_offsets else SCALE_DTYPE

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


def offsets_grid(span: int = 32) -> Grid:
    """int4 with offsets; the decoder's kernels take spans of 32, as gguf's Q4_1 has, and 64."""
    return Grid(4, span, has_offsets=True)


def on_grid(weight_RK: torch.Tensor, grid: Grid) -> torch.Tensor:
    """The nearest weights on the grid; zeros stay zeros, except with offsets.

    Lossy: a step the user asks for.
    """
    if not bool(weight_RK.isfinite().all()):
        raise InputError("rounding: weights must be finite, found NaN or infinity.")
    if grid.has_offsets:
        return offset_grid.rounded(weight_RK.float(), grid.span).to(weight_RK.dtype)
    tops_RG = _tops(weight_RK, grid)
    scales_RG = (tops_RG / grid.limit).to(SCALE_DTYPE)
    # Rounded up too far, the largest weight would not be the largest code.
    short = (tops_RG / scales_RG.float()).round() < grid.limit
    lower = (scales_RG.view(torch.int16) - 1).clamp(min=0).view(SCALE_DTYPE)
    scales_RG = torch.where(short & (scales_RG > 0), lower, scales_RG)
    rounded = decode(_codes(weight_RK, scales_RG, grid), scales_RG, None, grid)
    return rounded.to(weight_RK.dtype)


def find_grid(weight_RK: torch.Tensor, may_have_offsets: bool = False) -> Grid | None:
    """The grid with the fewest bytes that holds every weight to the bit, None if there is none."""
    num_columns = weight_RK.shape[1]
    if weight_RK.dtype is not torch.float32 or not weight_RK.numel():
        return None
    runs = -(-num_columns // _RUN)
    spans = [count * _RUN for count in range(min(runs, 16), 0, -1)] + [32, 16]
    grids = [Grid(4, span) for span in spans]
    grids += [offsets_grid(64), offsets_grid(32)] if may_have_offsets else []
    grids += [row_grid(num_columns)]
    return next((grid for grid in grids if encode_exactly(weight_RK, grid) is not None), None)


def encode_exactly(weight_RK: torch.Tensor, grid: Grid) -> Coded | None:
    """`encode`, or None where the grid does not hold every weight to the bit."""
    sample = weight_RK[:: max(1, len(weight_RK) // _SAMPLED_ROWS)]
    coded = encode(sample, grid)
    if _is_exact(coded, sample, grid):
        coded = encode(weight_RK, grid)
        if _is_exact(coded, weight_RK, grid):
            return coded
    return None


def encode(weight_RK: torch.Tensor, grid: Grid) -> Coded:
    """Codes, scales and offsets of weights that are on the grid."""
    if grid.has_offsets:
        return _encode_offsets(weight_RK, grid)
    tops_RG = _tops(weight_RK, grid)
    scales_RG = (tops_RG / grid.limit).to(SCALE_DTYPE)
    # Of int4, the largest weight of a span may be any code.
    for largest in range(grid.limit - 1, 0, -1) if grid.bits == 4 else ():
        wrong_RG = _tops(
            decode(_codes(weight_RK, scales_RG, grid), scales_RG, None, grid) - weight_RK, grid
        )
        if not bool(wrong_RG.any()):
            break
        other_RG = (tops_RG / largest).to(SCALE_DTYPE)
        scales_RG = torch.where(wrong_RG > 0, other_RG, scales_RG)
    return _codes(weight_RK, scales_RG, grid), scales_RG, None


def decode(
    codes_RK: torch.Tensor, scales_RG: torch.Tensor, offsets_RG: torch.Tensor | None, grid: Grid
) -> torch.Tensor:
    """float32 [R, K]: code x scale, exact; plus offset, rounded once."""
    products = codes_RK.float() * spread(scales_RG.float(), grid, codes_RK.shape[1])
    if offsets_RG is None:
        return products
    return products + spread(offsets_RG.float(), grid, codes_RK.shape[1])


def check_scales(
    scales_RG: torch.Tensor, offsets_RG: torch.Tensor | None, grid: Grid, where: str
) -> None:
    """Raise FormatError unless every weight that scales and offsets can give is finite."""
    largest = scales_RG.float() * grid.limit
    if not bool((largest.isfinite() & (scales_RG >= 0)).all()):
        raise FormatError(f"{where}: a scale is negative, NaN or too large.")
    if offsets_RG is not None and not bool(offsets_RG.isfinite().all()):
        raise FormatError(f"{where}: an offset is NaN or infinite.")


def pack_codes(codes: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Codes as a file holds them: int8 as they are, int4 two to a byte, as one row."""
    if grid.bits == 8:
        return codes.to(torch.int8)
    return pack_fields((codes.reshape(1, -1) + _stored_zero(grid)).to(torch.uint8), 4).view(-1)


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
        codes = (fields.to(torch.int8) - _stored_zero(grid)).view(shape)
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


def _is_exact(coded: Coded, weight_RK: torch.Tensor, grid: Grid) -> bool:
    same = decode(*coded, grid).view(torch.int32) == weight_RK.view(torch.int32)
    return bool(same.all())


def _encode_offsets(weight_RK: torch.Tensor, grid: Grid) -> Coded:
    num_rows, num_columns = weight_RK.shape
    spans = offset_grid.spans_of(weight_RK, grid.span).flatten(0, 1)
    scales, offsets = offset_grid.find_levels(spans)
    codes = offset_grid.codes_of(spans, scales, offsets).to(torch.int8)
    codes_RK = codes.view(num_rows, -1)[:, :num_columns].contiguous()
    return codes_RK, scales.view(num_rows, -1), offsets.view(num_rows, -1)


def _stored_zero(grid: Grid) -> int:
    return 0 if grid.has_offsets else _NIBBLE_ZERO


def _codes(weight_RK: torch.Tensor, scales_RG: torch.Tensor, grid: Grid) -> torch.Tensor:
    steps = spread(scales_RG.float(), grid, weight_RK.shape[1])
    codes = torch.where(steps > 0, weight_RK.float() / steps, 0.0).round()
    # NaN becomes 0, which is then found not to be the weight.
    return codes.nan_to_num(0.0).clamp(-grid.limit, grid.limit).to(torch.int8)


def _tops(weight_RK: torch.Tensor, grid: Grid) -> torch.Tensor:
    num_rows, num_columns = weight_RK.shape
    spans = grid.num_spans(num_columns)
    padded = weight_RK.new_zeros(num_rows, spans * grid.span, dtype=torch.float32)
    padded[:, :num_columns] = weight_RK.abs()
    return padded.view(num_rows, spans, grid.span).amax(dim=2)


def spread(per_span_RG: torch.Tensor, grid: Grid, num_columns: int) -> torch.Tensor:
    """What every column has of a number per span: [R, K]."""
    return per_span_RG.repeat_interleave(grid.span, dim=1)[:, :num_columns]
