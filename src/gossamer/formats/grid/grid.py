# SPDX-License-Identifier: Apache-2.0
"""The grids that weights can be on, and what is done with one.

A grid has one scale for `span` neighbouring columns of a row. Scales are bfloat16, so that
code x scale is exact in float32. Rounding makes the largest weight of a span the largest code;
solvers that round as they go (`pruning/solvers/sparsegpt.py`) may leave it at a smaller one of
int4. Kernels that quantise such a weight again (`ops/linear/int8.py`, `ops/linear/few_int.py`) find
the same weights. int4 of weights without a mask may have offsets besides (`offset_grid.py`).

Legend: R rows, K columns, G spans of a row.
"""

from dataclasses import dataclass

import torch

from gossamer.errors import FormatError, InputError
from gossamer.formats.bits import check_spare_bits, pack_fields, row_bytes, unpack_fields
from gossamer.formats.grid import offset_grid

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

    def packed_bytes(self, count: int) -> int:
        """Bytes of `count` codes in a file."""
        return row_bytes(count, self.bits)

    def rounded(self, weight_RK: torch.Tensor) -> torch.Tensor:
        """The nearest weights on the grid; zeros stay zeros, except with offsets.

        Lossy: a step the user asks for.
        """
        if not bool(weight_RK.isfinite().all()):
            raise InputError("rounding: weights must be finite, found NaN or infinity.")
        if self.has_offsets:
            return offset_grid.rounded(weight_RK.float(), self.span).to(weight_RK.dtype)
        tops_RG = self._tops(weight_RK)
        scales_RG = (tops_RG / self.limit).to(SCALE_DTYPE)
        # Rounded up too far, the largest weight would not be the largest code.
        short = (tops_RG / scales_RG.float()).round() < self.limit
        lower = (scales_RG.view(torch.int16) - 1).clamp(min=0).view(SCALE_DTYPE)
        scales_RG = torch.where(short & (scales_RG > 0), lower, scales_RG)
        return self._nearest(weight_RK, scales_RG).to(weight_RK.dtype)

    def encode(self, weight_RK: torch.Tensor) -> Coded:
        """Codes, scales and offsets of weights that are on the grid."""
        if self.has_offsets:
            return offset_grid.encode(weight_RK, self.span)
        tops_RG = self._tops(weight_RK)
        scales_RG = (tops_RG / self.limit).to(SCALE_DTYPE)
        # Of int4, the largest weight of a span may be any code.
        for largest in range(self.limit - 1, 0, -1) if self.bits == 4 else ():
            wrong_RG = self._tops(self._nearest(weight_RK, scales_RG) - weight_RK)
            if not bool(wrong_RG.any()):
                break
            scales_RG = torch.where(wrong_RG > 0, (tops_RG / largest).to(SCALE_DTYPE), scales_RG)
        return self._codes(weight_RK, scales_RG), scales_RG, None

    def encode_exactly(self, weight_RK: torch.Tensor) -> Coded | None:
        """`encode`, or None where the grid does not hold every weight to the bit."""
        coded = None
        for part in (weight_RK[:: max(1, len(weight_RK) // _SAMPLED_ROWS)], weight_RK):
            coded = self.encode(part)
            if not torch.equal(self.decode(*coded).view(torch.int32), part.view(torch.int32)):
                return None
        return coded

    def decode(
        self,
        codes_RK: torch.Tensor,
        scales_RG: torch.Tensor,
        offsets_RG: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """float32 [R, K]: code x scale, exact; plus offset, rounded once."""
        num_columns = codes_RK.shape[1]
        products = codes_RK.float() * self.spread(scales_RG, num_columns)
        return products if offsets_RG is None else products + self.spread(offsets_RG, num_columns)

    def spread(self, per_span_RG: torch.Tensor, num_columns: int) -> torch.Tensor:
        """What every column has of a number per span: float32 [R, K]."""
        return per_span_RG.float().repeat_interleave(self.span, dim=1)[:, :num_columns]

    def check_scales(
        self, scales_RG: torch.Tensor, offsets_RG: torch.Tensor | None, where: str
    ) -> None:
        """Raise FormatError unless every weight that scales and offsets can give is finite."""
        largest = scales_RG.float() * self.limit
        if not bool((largest.isfinite() & (scales_RG >= 0)).all()):
            raise FormatError(f"{where}: a scale is negative, NaN or too large.")
        if offsets_RG is not None and not bool(offsets_RG.isfinite().all()):
            raise FormatError(f"{where}: an offset is NaN or infinite.")

    def pack(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes as a file holds them: int8 as they are, int4 two to a byte, as one row."""
        if self.bits == 8:
            return codes.to(torch.int8)
        return pack_fields((codes.reshape(1, -1) + self._stored_zero).to(torch.uint8), 4).view(-1)

    def unpack(self, stored: torch.Tensor, shape: tuple[int, ...], where: str) -> torch.Tensor:
        """int8 codes of this shape; FormatError for numbers that `pack` never writes."""
        count = torch.Size(shape).numel()
        if self.bits == 4:
            num_bytes = self.packed_bytes(count)
            if stored.dtype is not torch.uint8 or stored.shape != (num_bytes,):
                raise FormatError(
                    f"{where}: {count} int4 codes are {num_bytes} bytes of uint8, found"
                    f" {stored.dtype} {list(stored.shape)}."
                )
            packed_1B = stored.view(1, -1)
            check_spare_bits(packed_1B, count, 4, where)
            fields = unpack_fields(packed_1B, count, 4)
            stored = (fields.to(torch.int8) - self._stored_zero).view(shape)
        elif stored.dtype is not torch.int8 or stored.shape != shape:
            raise FormatError(
                f"{where}: codes must be int8 {list(shape)}, found {stored.dtype}"
                f" {list(stored.shape)}."
            )
        if count and int(stored.min()) < -self.limit:
            raise FormatError(f"{where}: a code is below {-self.limit}.")
        return stored

    @property
    def _stored_zero(self) -> int:
        return 0 if self.has_offsets else _NIBBLE_ZERO

    def _nearest(self, weight_RK: torch.Tensor, scales_RG: torch.Tensor) -> torch.Tensor:
        return self.decode(self._codes(weight_RK, scales_RG), scales_RG)

    def _codes(self, weight_RK: torch.Tensor, scales_RG: torch.Tensor) -> torch.Tensor:
        steps = self.spread(scales_RG, weight_RK.shape[1])
        codes = torch.where(steps > 0, weight_RK.float() / steps, 0.0).round()
        # NaN becomes 0, which is then found not to be the weight.
        return codes.nan_to_num(0.0).clamp(-self.limit, self.limit).to(torch.int8)

    def _tops(self, weight_RK: torch.Tensor) -> torch.Tensor:
        num_rows, num_columns = weight_RK.shape
        spans = self.num_spans(num_columns)
        padded = weight_RK.new_zeros(num_rows, spans * self.span, dtype=torch.float32)
        padded[:, :num_columns] = weight_RK.abs()
        return padded.view(num_rows, spans, self.span).amax(dim=2)


@dataclass(frozen=True)
class Levels:
    """What integer codes stand for: code x scale (+ offset), one [R, G] of each for a grid."""

    grid: Grid
    scales: torch.Tensor
    offsets: torch.Tensor | None = None


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
    return next((grid for grid in grids if grid.encode_exactly(weight_RK) is not None), None)
