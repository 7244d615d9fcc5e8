# SPDX-License-Identifier: Apache-2.0
"""From a sparse matrix to the arrays of a file and back, through the registered formats."""

import torch

from gossamer.errors import FormatError, PatternError
from gossamer.formats.base import Arrays, Format
from gossamer.formats.bitmask import Bitmask
from gossamer.formats.block import BlockFormat
from gossamer.formats.csr import CSR
from gossamer.formats.matrix import SparseMatrix, matrix_shape
from gossamer.formats.nm import NMFormat
from gossamer.formats.nmg import NMGFormat
from gossamer.formats.vnm import VNMFormat
from gossamer.patterns import Pattern
from gossamer.registry import Registry

_STUB = """\
import gossamer
from gossamer.formats import Format

class MyFormat(Format):
    name = "{name}"
    ...  # supports, encode, decode, nbytes

gossamer.register.format("{name}", MyFormat())
gossamer.testing.check_format("{name}")
"""

FORMATS: Registry[Format] = Registry("format", _STUB)
for _format in (Bitmask(), CSR(), NMFormat(), VNMFormat(), NMGFormat(), BlockFormat()):
    FORMATS.add(_format.name, _format)


def choose_format(shape: tuple[int, int], nnz: int, itemsize: int, pattern: Pattern) -> str:
    """The name of the smallest format that stores `pattern`; the first registered wins a tie."""
    return min(
        _legal(pattern),
        key=lambda name: FORMATS.get(name).nbytes(shape, nnz, itemsize, pattern),
    )


def encode(matrix: SparseMatrix, format: str | None = None) -> tuple[str, Arrays]:
    """The name of `format`, or of the smallest legal one, and the arrays that a file holds."""
    if format is None:
        itemsize = matrix.values.element_size()
        format = choose_format(matrix.shape, matrix.nnz, itemsize, matrix.pattern)
    return format, _checked(format, matrix.pattern, "weight").encode(matrix)


def decode(
    format: str, arrays: Arrays, shape: tuple[int, ...], pattern: Pattern, where: str = "tensor"
) -> SparseMatrix:
    """The matrix behind arrays of a file; FormatError unless format and pattern are obeyed."""
    matrix = matrix_shape(shape)
    if matrix[0] < 0 or matrix[1] < 0:
        raise FormatError(f"{where}: the shape {list(shape)} has a negative size.")
    chosen = _checked(format, pattern, where)
    try:
        pattern.check_shape(matrix, where)
    except PatternError as error:
        raise FormatError(str(error)) from error
    for name, array in arrays.items():
        if array.layout is not torch.strided or array.is_meta:
            raise FormatError(
                f"{where}: array {name!r} must be an ordinary dense tensor with data."
            )
    devices = {array.device for array in arrays.values()}
    if len(devices) > 1:
        raise FormatError(f"{where}: arrays are on several devices: {sorted(map(str, devices))}.")
    return chosen.decode(arrays, shape, pattern, where)


def _legal(pattern: Pattern) -> list[str]:
    return [name for name in FORMATS.names() if FORMATS.get(name).supports(pattern)]


def _checked(format: str, pattern: Pattern, where: str) -> Format:
    chosen = FORMATS.get(format)
    if not chosen.supports(pattern):
        raise FormatError(
            f"{where}: format {format!r} cannot store pattern {pattern}. Formats that can:"
            f" {', '.join(_legal(pattern))}."
        )
    return chosen
