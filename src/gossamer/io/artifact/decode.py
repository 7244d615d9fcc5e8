# SPDX-License-Identifier: Apache-2.0
"""From stored arrays to weights: every index is validated before anything is expanded."""

from dataclasses import dataclass
from typing import Literal

import torch

from gossamer.errors import ArtifactError, FormatError, PatternError, RegistryError
from gossamer.formats import Positions, SparseMatrix
from gossamer.formats.bits import check_bits, unpack_bits
from gossamer.io.artifact.agreement import parse_mask_pattern
from gossamer.io.artifact.codes import decode_dense, decode_sparse, stored_arrays
from gossamer.io.artifact.manifest import DenseEntry, Manifest, MaskEntry, SparseEntry
from gossamer.io.artifact.piece import MASK_ARRAY, array_key
from gossamer.patterns import Pattern

Arrays = dict[str, torch.Tensor]


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
        if isinstance(entry, DenseEntry) and entry.codes is None:
            whole = arrays.pop(name)
            decoded[name] = whole if entry.stored is None else whole.float()
        elif isinstance(entry, DenseEntry):
            own = {array: arrays.pop(array_key(name, array)) for array in stored_arrays(entry)}
            try:
                decoded[name] = decode_dense(entry, own, place)
            except FormatError as error:
                raise ArtifactError(str(error)) from error
        elif isinstance(entry, SparseEntry):
            own = {array: arrays.pop(array_key(name, array)) for array in entry.arrays}
            decoded[name] = _decode_sparse(entry, own, place)
        elif entry.mask is not None:
            bits_RB = arrays.pop(array_key(name, MASK_ARRAY))
            owner = manifest.tensors[entry.to]
            decoded[name] = _decode_mask(entry.mask, bits_RB, owner.shape, place)  # type: ignore[union-attr]
    return decoded


def _decode_sparse(entry: SparseEntry, arrays: Arrays, where: str) -> SparseWeight:
    pattern = parse_mask_pattern(entry.mask, where)
    try:
        matrix = decode_sparse(entry, arrays, pattern, where)
    except (FormatError, PatternError, RegistryError) as error:
        raise ArtifactError(str(error)) from error
    _check_mask(entry.mask, matrix.nnz, matrix.positions.digest, where)
    return SparseWeight(SparseMatrix(matrix.positions, matrix.floats()), entry.holder)


def _decode_mask(
    entry: MaskEntry, bits_RB: torch.Tensor, shape: tuple[int, ...], where: str
) -> TiedMask:
    pattern = parse_mask_pattern(entry, where)
    matrix = (shape[0], shape[1])
    try:
        check_bits(bits_RB, matrix, where)
        mask = unpack_bits(bits_RB, matrix[1])
        pattern.check_shape(matrix, where)
        pattern.validate(mask, where)
    except (FormatError, PatternError) as error:
        raise ArtifactError(str(error)) from error
    positions = Positions(bits_RB, matrix)
    _check_mask(entry, positions.nnz, positions.digest, where)
    return TiedMask(mask, pattern)


def _check_mask(entry: MaskEntry, nnz: int, digest: str, where: str) -> None:
    if nnz != entry.nnz:
        raise ArtifactError(f"{where}: keeps {nnz} weights, the manifest says {entry.nnz}.")
    if digest != entry.sha256:
        raise ArtifactError(f"{where}: its mask does not match the digest in the manifest.")
