# SPDX-License-Identifier: Apache-2.0
"""From a model's inventory to the arrays that files hold, shard by shard, and back to weights.

Sizes are known from formulas before anything is packed, so free space is checked and shards are
cut first; then one shard at a time is packed, written and freed. Nothing is rounded here: weights
that are on a grid to the last bit become codes and scales, others are stored as they are. What puts
weights on a grid is `gossamer.nn.rounding`. On the way back every index is validated before
anything is expanded.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from gossamer.errors import ArtifactError, FormatError, PatternError, RegistryError
from gossamer.formats import FORMATS, Positions, SparseMatrix, choose_format, decode, encode
from gossamer.formats.bits import check_bits, row_bytes, unpack_bits
from gossamer.formats.grid import Grid, Levels, find_grid
from gossamer.formats.matrix import matrix_shape
from gossamer.io.artifact.agreement import parse_mask_pattern, table_state
from gossamer.io.artifact.inventory import Inventory, Slot
from gossamer.io.artifact.manifest import (
    CODES,
    MASK_ARRAY,
    OFFSETS,
    SCALES,
    VALUES,
    WHOLE,
    ArtifactKind,
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
from gossamer.io.safe_files.dtypes import DTYPE_NAMES, dtype_name
from gossamer.nn.layers.parts import SparseLayer
from gossamer.nn.layers.tables import TableLayer, TableState
from gossamer.nn.moe import stored_experts
from gossamer.nn.surgery.matrix_layers import conv1d_paths
from gossamer.patterns import Pattern

SHARD_BYTES = 2 * 2**30
# Room for headers, manifest and card in the free-space check.
BYTES_PER_PIECE = 1024
# Smaller tensors are not worth two more entries in a header, nor a look at all of their halves.
_MIN_ELEMENTS = 1024

Arrays = dict[str, torch.Tensor]
Packed = tuple[Arrays, TensorEntry]


@dataclass(frozen=True)
class Piece:
    """One tensor to store: its bytes by formula; `pack` gives its arrays and entry for a file."""

    name: str
    num_bytes: int
    pack: Callable[[str], Packed]


def plan_pieces(
    inventory: Inventory, kind: ArtifactKind
) -> tuple[list[Piece], dict[str, TensorEntry]]:
    """What to write, and the entries of tied tensors, which need no bytes of their own."""
    pieces: list[Piece] = []
    tied: dict[str, TensorEntry] = {}
    for name, slot in inventory.slots.items():
        owner = inventory.tied.get(name)
        if owner is not None and (slot.layer is None or inventory.slots[owner].layer is not None):
            tied[name] = TiedEntry(to=owner)
        elif kind == "dense":
            # Dense files have no masks: a tied weight with its zeros is another tensor than the
            # unmasked one.
            pieces.append(_dense_piece(slot))
        elif slot.table is not None:
            pieces.append(_table_piece(slot, slot.table))
        elif slot.layer is None:
            pieces.append(_coded_piece(slot) or _dense_piece(slot, halved=_fits_bfloat16(slot)))
        elif owner is None:
            pieces.append(_sparse_piece(slot, slot.layer))
        else:
            pieces.append(_mask_piece(slot, slot.layer, owner))
    return pieces, tied


def cut_shards(pieces: list[Piece], shard_bytes: int) -> list[list[Piece]]:
    """At least one shard of pieces in order, at most `shard_bytes` each unless one is larger."""
    shards: list[list[Piece]] = [[]]
    filled = 0
    for piece in pieces:
        if shards[-1] and filled + piece.num_bytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(piece)
        filled += piece.num_bytes
    return shards


def _fits_bfloat16(slot: Slot) -> bool:
    """float32 that bf16 holds to the last bit, as models from bf16 checkpoints are."""
    whole = slot.tensor.detach()
    if whole.dtype is not torch.float32 or whole.numel() < _MIN_ELEMENTS:
        return False
    return torch.equal(whole.bfloat16().float(), whole)


def _dense_piece(slot: Slot, *, halved: bool = False) -> Piece:
    stored = torch.bfloat16 if halved else slot.dtype

    def pack(file: str) -> Packed:
        return {WHOLE: slot.dense().to(stored)}, DenseEntry(
            file=file,
            shape=slot.shape,
            dtype=dtype_name(slot.dtype),
            stored="bfloat16" if halved else None,
        )

    return Piece(slot.name, torch.Size(slot.shape).numel() * stored.itemsize, pack)


def _table_piece(slot: Slot, layer: TableLayer) -> Piece:
    """A table as it is: nothing is rounded, and codes stay codes."""
    state = TableState.of(layer)
    how, arrays = state.quantising, state.arrays

    def pack(file: str) -> Packed:
        entry = TableEntry(
            file=file,
            shape=slot.shape,
            form=state.form,
            rows=len(arrays["rows"]),
            arrays=tuple(sorted(arrays)),
            **asdict(how),
        )
        return arrays, entry

    return Piece(slot.name, sum(array.nbytes for array in arrays.values()), pack)


def _coded_piece(slot: Slot) -> Piece | None:
    """An ordinary weight as codes; None if it is on no grid."""
    grid = _grid_of(slot.tensor, may_have_offsets=True)
    if grid is None:
        return None
    rows, columns = matrix = matrix_shape(slot.shape)

    def pack(file: str) -> Packed:
        codes_RK, scales_RG, offsets_RG = grid.encode(slot.tensor.detach().reshape(matrix))
        arrays = {CODES: grid.pack(codes_RK), SCALES: scales_RG}
        if offsets_RG is not None:
            arrays[OFFSETS] = offsets_RG
        codes = _codes_entry(grid, matrix)
        return arrays, DenseEntry(file=file, shape=slot.shape, dtype="float32", codes=codes)

    return Piece(slot.name, grid.packed_bytes(rows * columns) + _scale_bytes(matrix, grid), pack)


def _sparse_piece(slot: Slot, layer: SparseLayer) -> Piece:
    matrix, nnz, pattern = layer.matrix_shape, layer.nnz, layer.pattern
    grid = _grid_of(layer.dense_weight())
    itemsize = slot.tensor.element_size() if grid is None else 1
    format_name = choose_format(matrix, nnz, itemsize, pattern)
    num_bytes = FORMATS.get(format_name).nbytes(matrix, nnz, itemsize, pattern)
    if grid is not None:
        num_bytes += _scale_bytes(matrix, grid)

    def pack(file: str) -> Packed:
        held, codes = layer.matrix(), None
        held = held if grid is None else held.on_levels(grid)
        arrays = dict(encode(held, format_name)[1])
        if held.levels is not None:
            values, found = arrays.pop(VALUES), held.levels.grid
            arrays |= {CODES: found.pack(values), SCALES: held.levels.scales}
            codes = _codes_entry(found, tuple(values.shape))
        return arrays, SparseEntry(
            file=file,
            shape=slot.shape,
            dtype=dtype_name(slot.tensor.dtype),
            format=format_name,
            arrays=tuple(sorted(arrays)),
            mask=_mask_entry(layer),
            # Packed layers have become compact ones before.
            holder=layer.form,  # type: ignore[arg-type]
            mode=getattr(layer, "mode", None),
            codes=codes,
        )

    return Piece(slot.name, num_bytes, pack)


def _mask_piece(slot: Slot, layer: SparseLayer, owner: str) -> Piece:
    rows, columns = layer.matrix_shape

    def pack(file: str) -> Packed:
        entry = TiedEntry(to=owner, mask=_mask_entry(layer), file=file)
        return {MASK_ARRAY: layer.matrix().positions.bits()}, entry

    return Piece(slot.name, rows * row_bytes(columns), pack)


def _mask_entry(layer: SparseLayer) -> MaskEntry:
    return MaskEntry(pattern=str(layer.pattern), nnz=layer.nnz, sha256=layer.mask_digest())


def _codes_entry(grid: Grid, shape: tuple[int, ...]) -> CodesEntry:
    bits: Literal[8, 4] = 8 if grid.bits == 8 else 4
    return CodesEntry(bits=bits, span=grid.span, shape=shape, offsets=grid.has_offsets)


def _grid_of(weight: torch.Tensor, may_have_offsets: bool = False) -> Grid | None:
    """The grid that a weight of two or more dimensions is on; None: store it as it is."""
    if weight.ndim < 2 or weight.numel() < _MIN_ELEMENTS or weight.dtype is not torch.float32:
        return None
    return find_grid(weight.detach().flatten(1), may_have_offsets)


def _scale_bytes(matrix: tuple[int, int], grid: Grid) -> int:
    """Bytes of the scales of a matrix, and of its offsets."""
    count = matrix[0] * grid.num_spans(matrix[1]) * grid.scale_dtype.itemsize
    return 2 * count if grid.has_offsets else count


def as_published(inventory: Inventory, published: nn.Module) -> Inventory:
    """The same with the tensors that transformers itself would have.

    Weights of its Conv1D layers are turned around, those of experts are 3-D Parameters.

    Args:
        inventory: of the model as it is here.
        published: a skeleton of the model as transformers builds it.
    """
    slots = dict(inventory.slots)
    for path in conv1d_paths(published):
        slot = slots.get(f"{path}.weight")
        if slot is not None:
            slots[slot.name] = replace(slot, tensor=slot.dense().t().contiguous(), layer=None)
    for path, module, stored in stored_experts(published):
        for projection in stored:
            name = f"{path}.{projection.name}"
            weight, bias = slots.pop(f"{name}.weight"), slots.pop(f"{name}.bias", None)
            tensor = projection.as_stored(weight.dense(), int(module.num_experts))  # type: ignore[arg-type]
            moved: dict[str, Any] = {"path": path, "module": module, "layer": None}
            slots[name] = replace(weight, attribute=projection.name, tensor=tensor, **moved)
            if bias is not None:
                given = bias.tensor.detach().view(len(tensor), -1)
                attribute = f"{projection.name}_bias"
                slots[f"{path}.{attribute}"] = replace(
                    bias, attribute=attribute, tensor=given, **moved
                )
    return replace(inventory, slots=slots)


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


Decoded = torch.Tensor | SparseWeight | TableState | TiedMask


def decode_all(manifest: Manifest, arrays: Arrays, where: str) -> dict[str, Decoded]:
    """Every stored tensor by name; `arrays` is emptied, so that nothing is held twice."""
    found = {name: decode_one(manifest, name, arrays, where) for name in manifest.tensors}
    return {name: decoded for name, decoded in found.items() if decoded is not None}


def decode_one(manifest: Manifest, name: str, arrays: Arrays, where: str) -> Decoded | None:
    """One stored tensor; its arrays leave `arrays`. None for a tied one without a mask."""
    entry, place = manifest.tensors[name], f"{where}: tensor {name!a}"
    own = {array: arrays.pop(array_key(name, array)) for array in entry.arrays}
    try:
        if isinstance(entry, SparseEntry):
            return _decode_sparse(entry, own, place)
        if isinstance(entry, TableEntry):
            return _decode_table(entry, own, place)
        if isinstance(entry, DenseEntry):
            if entry.codes is None:
                return own[WHOLE].to(DTYPE_NAMES[entry.dtype])
            grid, codes_RK = _read_codes(entry.codes, own, place)
            return grid.decode(codes_RK, own[SCALES], own.get(OFFSETS)).view(entry.shape)
        if entry.mask is not None:
            shape = manifest.tensors[entry.to].shape  # type: ignore[union-attr]
            return _decode_mask(entry.mask, own[MASK_ARRAY], shape, place)
    except (FormatError, PatternError, RegistryError) as error:
        raise ArtifactError(str(error)) from error
    return None


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


def _decode_table(entry: TableEntry, arrays: Arrays, where: str) -> TableState:
    state = table_state(entry, arrays)
    state.check(entry.shape, where)
    return state


def _read_codes(entry: CodesEntry, arrays: Arrays, where: str) -> tuple[Grid, torch.Tensor]:
    grid = Grid(entry.bits, entry.span, entry.offsets)
    grid.check_scales(arrays[SCALES], arrays.get(OFFSETS), where)
    return grid, grid.unpack(arrays[CODES], entry.shape, where)


def _decode_mask(
    entry: MaskEntry, bits_RB: torch.Tensor, shape: tuple[int, ...], where: str
) -> TiedMask:
    pattern = parse_mask_pattern(entry, where)
    matrix = (shape[0], shape[1])
    check_bits(bits_RB, matrix, where)
    mask = unpack_bits(bits_RB, matrix[1])
    pattern.check_shape(matrix, where)
    pattern.validate(mask, where)
    positions = Positions(bits_RB, matrix, pattern)
    _check_mask(entry, positions.nnz, positions.digest, where)
    return TiedMask(mask, pattern)


def _check_mask(entry: MaskEntry, nnz: int, digest: str, where: str) -> None:
    if nnz != entry.nnz:
        raise ArtifactError(f"{where}: keeps {nnz} weights, the manifest says {entry.nnz}.")
    if digest != entry.sha256:
        raise ArtifactError(f"{where}: its mask does not match the digest in the manifest.")
