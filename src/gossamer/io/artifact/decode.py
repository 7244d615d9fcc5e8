# SPDX-License-Identifier: Apache-2.0
"""From stored arrays to weights: every index is validated before anything is expanded."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from gossamer.errors import ArtifactError, FormatError, PatternError, RegistryError
from gossamer.formats import SparseMatrix, decode
from gossamer.formats import grid as grids
from gossamer.formats.bits import check_bits, count_bits, unpack_bits
from gossamer.formats.matrix import Levels, mask_digest
from gossamer.io.artifact.agreement import parse_mask_pattern
from gossamer.io.artifact.manifest import (
    CODES,
    MASK_ARRAY,
    OFFSETS,
    SCALES,
    VALUES,
    WHOLE,
    CodesEntry,
    DenseEntry,
    Manifest,
    MaskEntry,
    SparseEntry,
    array_key,
)
from gossamer.io.artifact.packing import Arrays
from gossamer.io.safe_files.tensors import DTYPE_NAMES
from gossamer.patterns import Pattern


@dataclass(frozen=True)
class SparseWeight:
    """The weight of a sparse layer and the form that it was saved in."""

    matrix: SparseMatrix
    form: Literal["masked", "compact"]


@dataclass(frozen=True)
class TiedMask:
    """The mask of a masked layer whose weight belongs to another one."""

    mask: torch.Tensor
    pattern: Pattern


Decoded = torch.Tensor | SparseWeight | TiedMask


def decode_all(manifest: Manifest, arrays: Arrays, where: str) -> dict[str, Decoded]:
    """Every stored tensor by name; `arrays` is emptied, so that nothing is held twice."""
    decoded: dict[str, Decoded] = {}
    for name, entry in manifest.tensors.items():
        place = f"{where}: tensor {name!a}"
        own = {array: arrays.pop(array_key(name, array)) for array in entry.arrays}
        try:
            if isinstance(entry, SparseEntry):
                decoded[name] = _decode_sparse(entry, own, place)
            elif isinstance(entry, DenseEntry):
                if entry.codes is None:
                    decoded[name] = own[WHOLE].to(DTYPE_NAMES[entry.dtype])
                    continue
                grid, codes_RK = _read_codes(entry.codes, own, place)
                weight_RK = grids.decode(codes_RK, own[SCALES], own.get(OFFSETS), grid)
                decoded[name] = weight_RK.view(entry.shape)
            elif entry.mask is not None:
                shape = manifest.tensors[entry.to].shape  # type: ignore[union-attr]
                decoded[name] = _decode_mask(entry.mask, own[MASK_ARRAY], shape, place)
        except (FormatError, PatternError, RegistryError) as error:
            raise ArtifactError(str(error)) from error
    return decoded


def _decode_sparse(entry: SparseEntry, arrays: Arrays, where: str) -> SparseWeight:
    pattern, levels = parse_mask_pattern(entry.mask, where), None
    if entry.codes is not None:
        grid, arrays[VALUES] = _read_codes(entry.codes, arrays, where)
        levels = Levels(grid, arrays.pop(SCALES))
        del arrays[CODES]
    matrix = decode(entry.format, arrays, entry.shape, pattern, where)
    _check_mask(entry.mask, matrix.nnz, matrix.positions.digest, where)
    floats = replace(matrix, levels=levels).floats()
    return SparseWeight(SparseMatrix(matrix.positions, floats), entry.holder)


def _read_codes(entry: CodesEntry, arrays: Arrays, where: str) -> tuple[grids.Grid, torch.Tensor]:
    grid = grids.Grid(entry.bits, entry.span, entry.offsets)
    grids.check_scales(arrays[SCALES], arrays.get(OFFSETS), grid, where)
    return grid, grids.unpack_codes(arrays[CODES], entry.shape, grid, where)


def _decode_mask(
    entry: MaskEntry, bits_RB: torch.Tensor, shape: tuple[int, ...], where: str
) -> TiedMask:
    pattern = parse_mask_pattern(entry, where)
    matrix = (shape[0], shape[1])
    check_bits(bits_RB, matrix, where)
    mask = unpack_bits(bits_RB, matrix[1])
    pattern.check_shape(matrix, where)
    pattern.validate(mask, where)
    _check_mask(entry, count_bits(bits_RB), mask_digest(bits_RB, matrix), where)
    return TiedMask(mask, pattern)


def _check_mask(entry: MaskEntry, nnz: int, digest: str, where: str) -> None:
    if nnz != entry.nnz:
        raise ArtifactError(f"{where}: keeps {nnz} weights, the manifest says {entry.nnz}.")
    if digest != entry.sha256:
        raise ArtifactError(f"{where}: its mask does not match the digest in the manifest.")
