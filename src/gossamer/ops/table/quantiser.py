# SPDX-License-Identifier: Apache-2.0
"""How rows of a table become codes: symmetric, one scale for a table or for each row (DQRM).

S = max |w| / (2^(b-1) - 1),  q = clamp(round(w * (1 / S)), -2^(b-1), 2^(b-1) - 1),  w ~ S q.
Numbers are rounded half to even, the inverse is a float32. Native code computes the very same
expressions (`native/table/`), so a table that is rounded on the way, one that was packed, and the
functions here agree to the bit. arXiv 2410.20046, section 3; S there is the same.

Legend: V rows (ids), D columns (width), B bytes of a row.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from gossamer.errors import InputError

BITS = (8, 4, 2)
Granularity = Literal["table", "row", "span"]
SMALLEST_SCALE = 1e-8
LANES = 16  # of the kernels: columns that are never of two spans
_LARGEST_HALF = 65504.0


@dataclass(frozen=True)
class Rounding:
    """How a table is rounded.

    Attributes:
        bits: of a code: 8, 4 or 2.
        granularity: what shares a scale: the whole "table", a "row", or `span` columns of a row.
            The last is what files of encoders and decoders hold (`formats/grid/`); nothing is
            rounded that way here.
        half: scales are numbers of fp16, rounded up, so that other formats hold them exactly.
        span: a multiple of 16; 0 unless the granularity is "span".
    """

    bits: int
    granularity: Granularity = "table"
    half: bool = False
    span: int = 0

    def __post_init__(self) -> None:
        if self.bits not in BITS or isinstance(self.bits, bool):
            raise InputError(
                f"table: bits must be 8, 4 or 2, or None for float32; got {self.bits!r}."
            )
        if self.granularity not in ("table", "row", "span"):
            raise InputError(
                f"table: granularity must be 'table' or 'row', got {self.granularity!r}."
            )
        if self.span % LANES or self.span < 0 or (self.span > 0) != (self.granularity == "span"):
            raise InputError(
                f"table: a span is a multiple of {LANES} columns, for granularity 'span' alone; got"
                f" {self.span} for {self.granularity!r}."
            )

    @property
    def by_row(self) -> bool:
        """Whether every row has scales of its own."""
        return self.granularity != "table"

    def scales_of_row(self, width: int) -> int:
        """How many scales a row of codes has; of a whole table, its one."""
        return -(-width // self.span) if self.span else 1

    @property
    def lowest(self) -> int:
        """The smallest code."""
        return int(-(2 ** (self.bits - 1)))

    @property
    def highest(self) -> int:
        """The largest code."""
        return int(2 ** (self.bits - 1) - 1)

    def row_bytes(self, width: int) -> int:
        """Bytes of the codes of a row."""
        return (width * self.bits + 7) // 8

    def scale_of(self, top: float) -> float:
        """The scale of numbers whose largest magnitude is `top`, a float32."""
        return float(self.scales_of(torch.tensor(top, dtype=torch.float32)))

    def scales_of(self, tops: torch.Tensor) -> torch.Tensor:
        """Scales of groups of numbers with these largest magnitudes, float32."""
        scales = tops / torch.full_like(tops, float(self.highest))
        scales = torch.where(scales <= SMALLEST_SCALE, SMALLEST_SCALE, scales)
        return raised_to_half(scales) if self.half else scales

    def scales(self, weight_VD: torch.Tensor) -> torch.Tensor:
        """The exact scales of a table, [1] or [V]."""
        if not weight_VD.numel():
            tops = weight_VD.new_zeros(len(weight_VD) if self.by_row else 1)
        elif self.by_row:
            tops = weight_VD.abs().amax(dim=1)
        else:
            tops = weight_VD.abs().amax().reshape(1)
        return self.scales_of(tops)

    def whole(self, weight_VD: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """The codes as whole numbers, int8 [V, D]."""
        inverse = (torch.ones_like(scales) / scales).unsqueeze(1)
        clamped = (weight_VD * inverse).clamp(self.lowest, self.highest)
        return clamped.round().to(torch.int8)

    def rounded(self, weight_VD: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """What a lookup gives of a table: S q."""
        return self.whole(weight_VD, scales).to(weight_VD.dtype) * scales.unsqueeze(1)


def raised_to_half(scales: torch.Tensor) -> torch.Tensor:
    """The next numbers of fp16 that are not smaller, as float32; beyond 65504 as they are."""
    normal = ((scales.view(torch.int32) + 0x1FFF) & ~0x1FFF).view(torch.float32)
    small = (scales * 2.0**24).ceil() * 2.0**-24
    raised = torch.where(scales < 2.0**-14, small, normal)
    return torch.where(scales > _LARGEST_HALF, scales, raised)


def pack_codes(whole_VD: torch.Tensor, bits: int) -> torch.Tensor:
    """Bytes of whole numbers, uint8 [V, B]: q + 2^(b-1) in fields, low bits first; bytes hold q."""
    if bits == 8:
        return whole_VD.to(torch.int8).contiguous().view(torch.uint8)
    each, middle = 8 // bits, 2 ** (bits - 1)
    fields = whole_VD.to(torch.int16) + middle
    short = -fields.shape[1] % each
    fields = torch.nn.functional.pad(fields, (0, short))
    shifted = fields.view(len(fields), -1, each) << torch.arange(0, 8, bits, dtype=torch.int16)
    return torch.sum(shifted, -1).to(torch.uint8)


def unpack_codes(codes_VB: torch.Tensor, bits: int, width: int) -> torch.Tensor:
    """The whole numbers of bytes, int8 [V, D]."""
    if bits == 8:
        return codes_VB.view(torch.int8)
    middle, shifts = 2 ** (bits - 1), torch.arange(0, 8, bits, dtype=torch.uint8)
    fields = (codes_VB.unsqueeze(-1) >> shifts) & (2**bits - 1)
    whole: torch.Tensor = fields.flatten(1)[:, :width].to(torch.int8) - middle
    return whole.contiguous()


def top_of_bits(bits: int) -> float:
    """A largest magnitude that native code found, which it gives as the bits of a float32."""
    return float(np.uint32(bits).view(np.float32))
