# SPDX-License-Identifier: Apache-2.0
"""A table as kernels see it: floats, floats that are rounded on the way, or codes with scales.

Legend: V rows, D columns (width), B bytes of a row, G spans of a row.
"""

from dataclasses import dataclass

import torch

from gossamer.errors import FormatError, InputError
from gossamer.ops import _native
from gossamer.ops.addresses import address, runs_native
from gossamer.ops.kernels import active_kernels
from gossamer.ops.table.quantiser import Rounding, top_of_bits, unpack_codes

_WHERE = "table"
_FLOAT_BITS = 32
_MANY_BYTES = 16 * 2**20


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a table, wherever they are kept.

    Attributes:
        data: float32 [V, D], or the bytes of codes, uint8 [V, B].
        width: D.
        rounding: of codes; of floats that are rounded on the way; None for floats as they are.
        scales: float32 [1], [V] or, by spans, [V, G]; None for floats that are not rounded, or by
            their own row.
        row_map: int32, the row of each id; None where ids are rows.
    """

    data: torch.Tensor
    width: int
    rounding: Rounding | None = None
    scales: torch.Tensor | None = None
    row_map: torch.Tensor | None = None

    @property
    def is_coded(self) -> bool:
        """Whether `data` are codes."""
        return self.data.dtype is torch.uint8

    @property
    def num_ids(self) -> int:
        """How many ids can be looked up."""
        return len(self.data) if self.row_map is None else len(self.row_map)

    @property
    def nbytes(self) -> int:
        """Bytes of rows, scales and map."""
        held = (self.data, self.scales, self.row_map)
        return sum(t.numel() * t.element_size() for t in held if t is not None)

    def is_native(self) -> bool:
        """Whether the kernels can read it."""
        dtype = self.data.dtype
        return dtype in (torch.uint8, torch.float32) and runs_native(
            self.data, self.scales, self.row_map
        )

    def native(self, *, rounds: bool = True) -> _native.Table:
        """As native code takes it; this object must outlive it. Without `rounds`, as it is."""
        rounding = self.rounding
        fake = rounding is not None and not self.is_coded and rounds
        try:
            return _native.table(
                address(self.data, _WHERE),
                len(self.data),
                self.width,
                rounding.bits if rounding is not None and self.is_coded else _FLOAT_BITS,
                rounding.bits if rounding is not None and fake else 0,
                address(self.scales, _WHERE),
                rounding is not None and rounding.by_row,
                rounding is not None and rounding.half,
                address(self.row_map, _WHERE),
                self.num_ids,
                0 if rounding is None else rounding.span,
            )
        except ValueError as error:
            raise InputError(f"{error}.") from error

    def rows_of(self, ids: torch.Tensor) -> torch.Tensor:
        """The row of each id."""
        if self.row_map is None:
            return ids
        return self.row_map.index_select(0, ids).long()

    def floats(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        """What a lookup gives of these rows, or of all; plain torch, a copy."""
        data = self.data.detach() if rows is None else self.data.detach().index_select(0, rows)
        if self.rounding is None:
            return data.clone() if rows is None else data
        scales = self.scales
        if scales is not None and self.rounding.by_row and rows is not None:
            scales = scales.index_select(0, rows)
        if not self.is_coded:
            return self.rounding.rounded(
                data, self.rounding.scales(data) if scales is None else scales
            )
        if scales is None:
            raise FormatError("table: codes need scales.")
        whole = unpack_codes(data, self.rounding.bits, self.width).float()
        return whole * self._by_column(scales)

    def _by_column(self, scales: torch.Tensor) -> torch.Tensor:
        if self.rounding is None or not self.rounding.span:
            return scales.unsqueeze(1)
        return scales.repeat_interleave(self.rounding.span, dim=1)[:, : self.width]

    def top(self) -> float:
        """The largest magnitude of floats; NaN if there is one."""
        return top_of(self.data.detach())

    def check(self, where: str) -> None:
        """Raise FormatError unless shapes, scales and map agree; after it every lookup is safe."""
        rounding, rows = self.rounding, len(self.data)
        if self.is_coded:
            if rounding is None or self.scales is None:
                raise FormatError(f"{where}: codes need a rounding and scales.")
            expected = (rows, rounding.row_bytes(self.width))
            _expect(self.data, torch.uint8, expected, "codes", where)
            shape: tuple[int, ...] = (rows if rounding.by_row else 1,)
            shape += (rounding.scales_of_row(self.width),) if rounding.span else ()
            _expect(self.scales, torch.float32, shape, "scales", where)
            if not bool((self.scales > 0).all() & self.scales.isfinite().all()):
                raise FormatError(f"{where}: scales must be positive and finite.")
            self._check_rest(rounding, where)
        else:
            _expect(self.data, torch.float32, (rows, self.width), "weight", where)
        if self.row_map is not None:
            _expect(self.row_map, torch.int32, (len(self.row_map),), "row_map", where)
            if (
                self.row_map.numel()
                and not 0 <= int(self.row_map.min()) <= int(self.row_map.max()) < rows
            ):
                raise FormatError(f"{where}: the map names a row that is not there ({rows} rows).")

    def _check_rest(self, rounding: Rounding, where: str) -> None:
        used = self.width * rounding.bits % 8
        if used and bool((self.data[:, -1] >> used).any()):
            raise FormatError(f"{where}: bits behind the last code of a row must be zero.")


def settled(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor; from 16 MiB on, in pages of 2 MiB where the system has them (Linux 6.1)."""
    if tensor.nbytes >= _MANY_BYTES and runs_native(tensor):
        _native.huge_pages(address(tensor, _WHERE), tensor.nbytes)
    return tensor


def top_of(weight: torch.Tensor) -> float:
    """The largest magnitude of a tensor; NaN if it holds one."""
    if weight.dtype is torch.float32 and runs_native(weight):
        return top_of_bits(
            _native.table_top(address(weight, _WHERE), weight.numel(), active_kernels())
        )
    return float(weight.abs().amax()) if weight.numel() else 0.0


@torch.no_grad()
def encode_rows(
    weight_VD: torch.Tensor, rounding: Rounding, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [V, B] and scales of a table; `scale` is that of the table, if it has one.

    Raises:
        InputError: a weight is not finite, or needs a scale that fp16 does not have.
    """
    weight_VD = weight_VD.detach().float().contiguous().cpu()
    top = top_of(weight_VD)
    if not 0 <= top < float("inf"):
        raise InputError("table: holds NaN or infinities, which have no code.")
    if rounding.half and rounding.scale_of(top) > 65504:
        raise InputError(f"table: values up to {top:g} need a scale beyond fp16.")
    num_rows, width = weight_VD.shape
    codes = settled(torch.empty(num_rows, rounding.row_bytes(width), dtype=torch.uint8))
    scales = settled(torch.empty(num_rows if rounding.by_row else 1))
    if not rounding.by_row:
        scales.fill_(rounding.scale_of(top) if scale is None else scale)
    if num_rows:
        floats = Rows(weight_VD, width, rounding, None if rounding.by_row else scales)
        target = (address(codes, _WHERE), address(scales, _WHERE), active_kernels())
        _native.table_encode(floats.native(rounds=False), rounding.bits, *target)
    return codes, scales


def _expect(
    array: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], name: str, where: str
) -> None:
    if array.dtype is not dtype or tuple(array.shape) != shape:
        raise FormatError(
            f"{where}: {name} must be {dtype} {list(shape)}, got {array.dtype} {list(array.shape)}."
        )
