# SPDX-License-Identifier: Apache-2.0
"""Do manifest and tensor headers tell the same story? Checked before any tensor is read."""

import math
from collections.abc import Container

import torch

from gossamer.errors import ArtifactError, InputError, PatternError
from gossamer.formats import FORMATS
from gossamer.formats.bits import row_bytes
from gossamer.formats.grid import Grid
from gossamer.formats.matrix import VALUE_DTYPES, matrix_shape
from gossamer.io.artifact.manifest import (
    CODES,
    MASK_ARRAY,
    OFFSETS,
    SCALES,
    SEPARATOR,
    VALUES,
    CodesEntry,
    DenseEntry,
    Manifest,
    MaskEntry,
    SparseEntry,
    TableEntry,
    TensorEntry,
    TiedEntry,
    array_key,
)
from gossamer.io.safe_files.checks import checked_bytes
from gossamer.io.safe_files.dtypes import DTYPE_NAMES, dtype_name
from gossamer.io.safe_files.tensors import StoredTensor, TensorHeader
from gossamer.nn.layers.tables import Quantising, TableState
from gossamer.patterns import Pattern, parse_pattern

Headers = dict[str, TensorHeader]
MAX_PARTS = 64


def check_agreement(manifest: Manifest, headers: Headers, where: str) -> None:
    """Raise ArtifactError unless every stored array belongs to one entry and fits it."""
    claimed = set()
    for name, entry in manifest.tensors.items():
        place = f"{where}: tensor {name!a}"
        if SEPARATOR in name:
            raise ArtifactError(f"{place}: '{SEPARATOR}' is not allowed in a name.")
        for array in entry.arrays:
            key, file = array_key(name, array), entry.file or ""
            if file not in headers or key not in headers[file].tensors:
                raise ArtifactError(f"{place}: {key!a} is not stored in {file!a}.")
            claimed.add((file, key))
        _check_entry(name, entry, manifest, headers, place)
    for file, header in headers.items():
        for key in sorted(header.tensors):
            if (file, key) not in claimed:
                raise ArtifactError(f"{where}: {file} holds {key!a}, which no entry names.")
    shared = manifest.shared_modules
    for name in (*manifest.tensors, *shared.values()):
        inside = enclosing(name, shared)
        if inside is not None:
            raise ArtifactError(
                f"{where}: {name!a} lies in {inside!a}, which is a second name of"
                f" {shared[inside]!a} and holds nothing of its own."
            )


def enclosing(name: str, paths: Container[str]) -> str | None:
    """The longest of `paths` that is `name` or a module around it."""
    parts = name.split(".")
    if len(parts) > MAX_PARTS:
        raise ArtifactError(f"{name[:80]!a}...: more than {MAX_PARTS} nested modules.")
    around = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((path for path in around if path in paths), None)


def memory_needed(manifest: Manifest) -> int:
    """Bytes that the loaded model needs, the largest temporary included."""
    total = temporary = 0
    for name, entry in manifest.tensors.items():
        if isinstance(entry, TiedEntry):
            continue
        if isinstance(entry, TableEntry):
            # Rows as they are stored; nothing is expanded.
            width = 4 if entry.form == "trained" and entry.shadow else 1
            total += checked_bytes((entry.rows + 1, *entry.shape[1:]), width, name)
            total += checked_bytes(entry.shape[:1], 8, name)
            continue
        itemsize = DTYPE_NAMES[entry.dtype].itemsize
        dense = checked_bytes(entry.shape, itemsize, name)
        numel = dense // itemsize
        # Codes, their scales spread over the columns, and the product.
        needed = 0 if entry.codes is None else 2 * dense + 2 * numel
        kept = dense
        if isinstance(entry, SparseEntry):
            # Expanding needs the dense weight and a bool mask; a masked layer keeps both.
            needed = dense + (needed or 2 * numel)
            kept = dense + numel if entry.holder == "masked" else entry.mask.nnz * itemsize
            kept += numel // 8
        total += kept
        temporary = max(temporary, needed)
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


def _check_entry(
    name: str, entry: TensorEntry, manifest: Manifest, headers: Headers, where: str
) -> None:
    if isinstance(entry, TiedEntry):
        _check_tied(name, entry, manifest, headers, where)
        return
    if isinstance(entry, TableEntry):
        _check_table(name, entry, headers[entry.file].tensors, where)
        return
    dtype = DTYPE_NAMES.get(entry.dtype)
    if dtype is None:
        raise ArtifactError(f"{where}: dtype {entry.dtype!a} is not known.")
    checked_bytes(entry.shape, dtype.itemsize, where)
    stored = headers[entry.file].tensors
    if entry.codes is not None:
        _check_codes(name, entry, entry.codes, stored, where)
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


def _check_table(name: str, entry: TableEntry, stored: dict[str, StoredTensor], where: str) -> None:
    """The headers of a table fit its description."""
    checked_bytes(entry.shape, 4, where)
    checked_bytes((entry.rows, *entry.shape[1:]), 4, where)
    held = {array: stored[array_key(name, array)] for array in entry.arrays}
    arrays = {
        array: torch.empty(found.shape, dtype=found.dtype, device="meta")
        for array, found in held.items()
    }
    try:
        fault = table_state(entry, arrays).fault(entry.shape)
    except InputError as error:
        raise ArtifactError(f"{where}: {error}") from error
    if fault is None and len(arrays["rows"]) != entry.rows:
        fault = f"{len(arrays['rows'])} rows, the manifest says {entry.rows}"
    if fault is not None:
        raise ArtifactError(f"{where}: {fault}.")


def table_state(entry: TableEntry, arrays: dict[str, torch.Tensor]) -> TableState:
    """A table as its entry describes it; InputError if settings contradict each other."""
    how = {name: getattr(entry, name) for name in ("bits", "granularity", "half_scale", "shadow")}
    return TableState(entry.form, Quantising(period=entry.period, **how), arrays)


def _check_codes(
    name: str,
    entry: DenseEntry | SparseEntry,
    codes: CodesEntry,
    stored: dict[str, StoredTensor],
    where: str,
) -> None:
    """The headers of codes and scales fit their description."""
    if entry.dtype != "float32" or len(entry.shape) < 2:
        raise ArtifactError(f"{where}: codes stand for float32 weights of 2 or more dimensions.")
    if codes.offsets and (codes.bits != 4 or isinstance(entry, SparseEntry)):
        raise ArtifactError(f"{where}: offsets belong to int4 weights without a mask.")
    rows, columns = matrix_shape(entry.shape)
    count = math.prod(codes.shape)
    wanted_count = entry.mask.nnz if isinstance(entry, SparseEntry) else rows * columns
    if count != wanted_count:
        raise ArtifactError(f"{where}: {count} codes for {wanted_count} weights.")
    grid = Grid(codes.bits, codes.span, codes.offsets)
    scales = (dtype_name(grid.scale_dtype), (rows, grid.num_spans(columns)))
    expected = {CODES: ("int8", codes.shape), SCALES: scales}
    if codes.bits == 4:
        expected[CODES] = ("uint8", (grid.packed_bytes(count),))
    if codes.offsets:
        expected[OFFSETS] = scales
    for array, (dtype, shape) in expected.items():
        found = stored.get(array_key(name, array))
        if found is None or dtype_name(found.dtype) != dtype or found.shape != shape:
            raise ArtifactError(f"{where}: its {array} must be stored as {dtype} {list(shape)}.")


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
    stored = headers[entry.file].tensors[array_key(name, MASK_ARRAY)]
    _expect(stored, "uint8", (owner.shape[0], row_bytes(owner.shape[1])), where)


def _expect(stored: StoredTensor, dtype: str, shape: tuple[int, ...], where: str) -> None:
    if dtype_name(stored.dtype) != dtype or stored.shape != shape:
        raise ArtifactError(
            f"{where}: the manifest says {dtype} {list(shape)}, the file holds"
            f" {dtype_name(stored.dtype)} {list(stored.shape)}."
        )
