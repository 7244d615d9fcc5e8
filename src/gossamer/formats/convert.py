# SPDX-License-Identifier: Apache-2.0
"""From weight and mask to arrays and back, through the registered formats."""

import torch

from gossamer.errors import FormatError, InputError, PatternError
from gossamer.formats.base import VALUE_DTYPES, Format, SparseTensor
from gossamer.formats.bitmask import Bitmask
from gossamer.formats.block import BlockFormat
from gossamer.formats.csr import CSR
from gossamer.formats.nm import NMFormat
from gossamer.formats.nmg import NMGFormat
from gossamer.formats.vnm import VNMFormat
from gossamer.patterns.base import Pattern
from gossamer.registry import Registry

_STUB = """\
import gossamer
from gossamer.formats import Format

class MyFormat(Format):
    name = "{name}"
    ...  # supports, pack, validate, unpack, nbytes

gossamer.register.format("{name}", MyFormat())
gossamer.testing.check_format("{name}")
"""

FORMATS: Registry[Format] = Registry("format", _STUB)
for _format in (Bitmask(), CSR(), NMFormat(), VNMFormat(), NMGFormat(), BlockFormat()):
    FORMATS.add(_format.name, _format)


def choose_format(shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> str:
    """The name of the smallest format that stores `pattern`; the first registered wins a tie."""
    names = [name for name in FORMATS.names() if FORMATS.get(name).supports(pattern)]
    return min(names, key=lambda name: FORMATS.get(name).nbytes(shape, nnz, itemsize, pattern))


def pack(
    weight: torch.Tensor, mask: torch.Tensor, pattern: Pattern, format: str | None = None
) -> SparseTensor:
    """Store the kept entries of `weight` [R, K] in `format`, or in the smallest legal one.

    The mask is authoritative: kept values are stored bit by bit as they are (0, -0.0, NaN, Inf),
    the others are not looked at. Arrays are copies, detached, on the weight's device.
    """
    if weight.ndim != 2 or weight.dtype not in VALUE_DTYPES:
        names = ", ".join(str(d).removeprefix("torch.") for d in VALUE_DTYPES)
        raise InputError(
            f"weight: expected 2 dimensions [out, in] of {names}; got {weight.dtype} of shape"
            f" {list(weight.shape)}. Flatten a convolution's weight to [out, everything else]."
        )
    if mask.shape != weight.shape or mask.device != weight.device:
        raise InputError(
            f"mask: must have the weight's shape {list(weight.shape)} and device {weight.device};"
            f" got {list(mask.shape)} on {mask.device}."
        )
    shape = (weight.shape[0], weight.shape[1])
    pattern.check_shape(shape)
    pattern.validate(mask)
    if format is None:
        nnz = int(mask.sum())
        format = choose_format(shape, nnz, weight.element_size(), pattern)
    chosen = FORMATS.get(format)
    if not chosen.supports(pattern):
        raise FormatError(_unsupported("weight", format, pattern))
    return SparseTensor(shape, pattern, format, chosen.pack(weight.detach(), mask, pattern))


def validate(sparse: SparseTensor, where: str = "tensor") -> None:
    """Raise FormatError unless every array and index of `sparse` obeys its format and pattern."""
    rows, columns = sparse.shape
    if rows < 0 or columns < 0:
        raise FormatError(f"{where}: the shape {list(sparse.shape)} has a negative size.")
    chosen = FORMATS.get(sparse.format)
    if not chosen.supports(sparse.pattern):
        raise FormatError(_unsupported(where, sparse.format, sparse.pattern))
    try:
        sparse.pattern.check_shape(sparse.shape, where)
    except PatternError as error:
        raise FormatError(str(error)) from error
    for name, array in sparse.arrays.items():
        if array.layout is not torch.strided or array.is_meta:
            raise FormatError(
                f"{where}: array {name!r} must be an ordinary dense tensor with data."
            )
    devices = {array.device for array in sparse.arrays.values()}
    if len(devices) > 1:
        raise FormatError(f"{where}: arrays are on several devices: {sorted(map(str, devices))}.")
    chosen.validate(sparse.arrays, sparse.shape, sparse.pattern, where)


def unpack(sparse: SparseTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight, mask) of a sparse tensor, exact zeros where nothing was kept. Validates first."""
    validate(sparse)
    return FORMATS.get(sparse.format).unpack(sparse.arrays, sparse.shape, sparse.pattern)


def _unsupported(where: str, format: str, pattern: Pattern) -> str:
    legal = ", ".join(name for name in FORMATS.names() if FORMATS.get(name).supports(pattern))
    return f"{where}: format {format!r} cannot store pattern {pattern}. Formats that can: {legal}."
