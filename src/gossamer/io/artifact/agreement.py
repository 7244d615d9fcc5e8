# SPDX-License-Identifier: Apache-2.0
"""Do manifest and tensor headers tell the same story? Checked before any tensor is read."""

from collections.abc import Container

from gossamer.errors import ArtifactError, PatternError
from gossamer.formats import FORMATS, VALUE_DTYPES
from gossamer.formats.bits import row_bytes
from gossamer.io.artifact.codes import VALUES, check_coded, stored_arrays
from gossamer.io.artifact.manifest import (
    DenseEntry,
    Manifest,
    MaskEntry,
    SparseEntry,
    TensorEntry,
    TiedEntry,
)
from gossamer.io.artifact.piece import MASK_ARRAY, SEPARATOR, array_key
from gossamer.io.safe_files import checked_bytes
from gossamer.io.safe_files.tensors import DTYPE_NAMES, StoredTensor, TensorHeader, dtype_name
from gossamer.patterns import Pattern, parse_pattern

Headers = dict[str, TensorHeader]
MAX_PARTS = 64


def check_agreement(manifest: Manifest, headers: Headers, where: str) -> None:
    """Raise ArtifactError unless every stored array belongs to one entry and fits it."""
    claimed: dict[str, set[str]] = {file: set() for file in headers}
    for name, entry in manifest.tensors.items():
        place = f"{where}: tensor {name!a}"
        if SEPARATOR in name:
            raise ArtifactError(f"{place}: '{SEPARATOR}' is not allowed in a name.")
        for key in _keys_of(name, entry):
            file = entry.file or ""
            if file not in headers or key not in headers[file].tensors:
                raise ArtifactError(f"{place}: {key!a} is not stored in {file!a}.")
            claimed[file].add(key)
        _check_entry(name, entry, manifest, headers, place)
    for file, header in headers.items():
        unclaimed = sorted(set(header.tensors) - claimed[file])
        if unclaimed:
            raise ArtifactError(f"{where}: {file} holds {unclaimed[0]!a}, which no entry names.")
    _check_sharing(manifest, where)


def enclosing(name: str, paths: Container[str]) -> str | None:
    """The longest of `paths` that is `name` or a module around it."""
    parts = name.split(".")
    if len(parts) > MAX_PARTS:
        raise ArtifactError(f"{name[:80]!a}...: more than {MAX_PARTS} nested modules.")
    for end in range(len(parts), 0, -1):
        path = ".".join(parts[:end])
        if path in paths:
            return path
    return None


def memory_needed(manifest: Manifest) -> int:
    """Bytes that the loaded model needs, the largest temporary included."""
    total = temporary = 0
    for name, entry in manifest.tensors.items():
        if isinstance(entry, TiedEntry):
            continue
        itemsize = DTYPE_NAMES[entry.dtype].itemsize
        dense = checked_bytes(entry.shape, itemsize, name)
        numel = dense // itemsize
        if isinstance(entry, DenseEntry):
            total += dense
            if entry.codes is not None:
                # Codes, their scales spread over the columns, and the product.
                temporary = max(temporary, 2 * dense + 2 * numel)
            continue
        # Expanding needs the dense weight and a bool mask; a masked layer keeps both.
        factor = 1 if entry.codes is None else 3
        temporary = max(temporary, factor * dense + 2 * numel)
        kept = dense + numel if entry.holder == "masked" else entry.mask.nnz * itemsize
        total += kept + numel // 8
    return total + temporary


def parse_mask_pattern(mask: MaskEntry, where: str) -> Pattern:
    """The pattern an entry names, from the closed registry."""
    try:
        pattern = parse_pattern(mask.pattern)
    except PatternError as error:
        raise ArtifactError(
            f"{where}: pattern {mask.pattern!a} is not known to this gossamer."
        ) from error
    if str(pattern) != mask.pattern:
        raise ArtifactError(f"{where}: pattern {mask.pattern!a} is not in canonical form.")
    return pattern


def _keys_of(name: str, entry: TensorEntry) -> list[str]:
    if isinstance(entry, DenseEntry):
        return [array_key(name, array) for array in stored_arrays(entry)] or [name]
    if isinstance(entry, SparseEntry):
        return [array_key(name, array) for array in entry.arrays]
    return [] if entry.mask is None else [array_key(name, MASK_ARRAY)]


def _check_entry(
    name: str, entry: TensorEntry, manifest: Manifest, headers: Headers, where: str
) -> None:
    if isinstance(entry, TiedEntry):
        _check_tied(name, entry, manifest, headers, where)
        return
    dtype = DTYPE_NAMES.get(entry.dtype)
    if dtype is None:
        raise ArtifactError(f"{where}: dtype {entry.dtype!a} is not known.")
    checked_bytes(entry.shape, dtype.itemsize, where)
    stored = headers[entry.file].tensors
    check_coded(name, entry, stored, where)
    if isinstance(entry, DenseEntry):
        if entry.stored is not None and (entry.codes is not None or entry.dtype != "float32"):
            raise ArtifactError(
                f"{where}: only plain float32 tensors are stored as {entry.stored}."
            )
        if entry.codes is None:
            _expect(stored[name], entry.stored or entry.dtype, entry.shape, where)
        return
    if entry.format not in FORMATS:
        raise ArtifactError(
            f"{where}: format {entry.format!a} is not known; known: {', '.join(FORMATS.names())}."
        )
    parse_mask_pattern(entry.mask, where)
    if dtype not in VALUE_DTYPES or len(entry.shape) < 2:
        raise ArtifactError(
            f"{where}: a sparse weight has 2 or more dimensions and floating point values, got"
            f" {entry.dtype} {list(entry.shape)}."
        )
    if (entry.mode is None) != (entry.holder == "masked"):
        raise ArtifactError(f"{where}: compact weights have a mode, masked ones do not.")
    values = stored.get(array_key(name, VALUES))
    if entry.codes is None and (values is None or values.dtype is not dtype):
        raise ArtifactError(f"{where}: its values must be stored as {entry.dtype}.")


def _check_tied(
    name: str, entry: TiedEntry, manifest: Manifest, headers: Headers, where: str
) -> None:
    owner = manifest.tensors.get(entry.to)
    if owner is None or isinstance(owner, TiedEntry) or entry.to == name:
        raise ArtifactError(f"{where}: is tied to {entry.to!a}, which is not stored.")
    if (entry.mask is None) != (entry.file is None):
        raise ArtifactError(f"{where}: a tied mask needs both a file and a description.")
    if entry.mask is None or entry.file is None:
        return
    if not isinstance(owner, DenseEntry) or len(owner.shape) != 2:
        raise ArtifactError(f"{where}: a tied mask needs a dense matrix to apply to.")
    parse_mask_pattern(entry.mask, where)
    rows, columns = owner.shape
    stored = headers[entry.file].tensors[array_key(name, MASK_ARRAY)]
    _expect(stored, "uint8", (rows, row_bytes(columns)), where)


def _check_sharing(manifest: Manifest, where: str) -> None:
    shared = manifest.shared_modules
    for name in (*manifest.tensors, *shared.values()):
        inside = enclosing(name, shared)
        if inside is not None:
            raise ArtifactError(
                f"{where}: {name!a} lies in {inside!a}, which is a second name of"
                f" {shared[inside]!a} and holds nothing of its own."
            )


def _expect(stored: StoredTensor, dtype: str, shape: tuple[int, ...], where: str) -> None:
    if dtype_name(stored.dtype) != dtype or stored.shape != shape:
        raise ArtifactError(
            f"{where}: the manifest says {dtype} {list(shape)}, the file holds"
            f" {dtype_name(stored.dtype)} {list(stored.shape)}."
        )
