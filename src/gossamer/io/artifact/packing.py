# SPDX-License-Identifier: Apache-2.0
"""From a model's inventory to the arrays that files hold, shard by shard.

Sizes are known from formulas before anything is packed, so free space is checked and shards are
cut first; then one shard at a time is packed, written and freed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch

from gossamer.errors import InputError
from gossamer.formats import FORMATS, choose_format, encode
from gossamer.formats.bits import row_bytes
from gossamer.io.artifact.codes import as_codes, coded_dense, grid_of, scale_bytes
from gossamer.io.artifact.inventory import Inventory, Slot
from gossamer.io.artifact.manifest import (
    CodesEntry,
    DenseEntry,
    MaskEntry,
    SparseEntry,
    TensorEntry,
    TiedEntry,
)
from gossamer.io.artifact.piece import MASK_ARRAY, SEPARATOR, Arrays, Piece, array_key
from gossamer.io.safe_files.tensors import dtype_name
from gossamer.nn.layers import SparseLayer

SHARD_BYTES = 2 * 2**30
# Elements from which half of a tensor is worth a look at all of it.
_MIN_HALVED = 1024

ArtifactKind = Literal["packed", "dense"]


def plan_pieces(
    inventory: Inventory, kind: ArtifactKind
) -> tuple[list[Piece], dict[str, TensorEntry]]:
    """What to write, and the entries of tied tensors, which need no bytes of their own."""
    pieces: list[Piece] = []
    tied: dict[str, TensorEntry] = {}
    for name, slot in inventory.slots.items():
        owner = inventory.tied.get(name)
        if owner is None:
            pieces.append(_piece(slot, kind))
        elif slot.layer is None or inventory.slots[owner].layer is not None:
            tied[name] = TiedEntry(to=owner)
        elif kind == "packed":
            pieces.append(_mask_piece(slot, slot.layer, owner))
        else:
            # Dense files have no masks: with its zeros it is another tensor than the unmasked one.
            pieces.append(_dense_piece(slot))
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


def _piece(slot: Slot, kind: ArtifactKind) -> Piece:
    if kind == "dense":
        return _dense_piece(slot)
    if slot.layer is None:
        return coded_dense(slot) or _halved_piece(slot) or _dense_piece(slot)
    return _sparse_piece(slot, slot.layer)


def _halved_piece(slot: Slot) -> Piece | None:
    """float32 that bf16 holds to the last bit, as models from bf16 checkpoints are; else None."""
    whole = slot.tensor.detach()
    if whole.dtype is not torch.float32 or whole.numel() < _MIN_HALVED:
        return None
    if not torch.equal(whole.bfloat16().float(), whole):
        return None

    def arrays() -> Arrays:
        return {slot.name: whole.bfloat16()}

    def entry(file: str, _: tuple[str, ...]) -> TensorEntry:
        return DenseEntry(file=file, shape=slot.shape, dtype="float32", stored="bfloat16")

    return Piece(slot.name, whole.numel() * torch.bfloat16.itemsize, arrays, entry)


def _dense_piece(slot: Slot) -> Piece:
    dtype, shape, layer = slot.tensor.dtype, slot.shape, slot.layer

    def arrays() -> Arrays:
        return {slot.name: slot.tensor.detach() if layer is None else layer.dense_weight()}

    def entry(file: str, _: tuple[str, ...]) -> TensorEntry:
        return DenseEntry(file=file, shape=shape, dtype=dtype_name(dtype))

    return Piece(slot.name, torch.Size(shape).numel() * dtype.itemsize, arrays, entry)


def _sparse_piece(slot: Slot, layer: SparseLayer) -> Piece:
    matrix, nnz, pattern = layer.matrix_shape, layer.nnz, layer.pattern
    grid = grid_of(layer.dense_weight())
    itemsize = slot.tensor.element_size() if grid is None else 1
    format_name = choose_format(matrix, nnz, itemsize, pattern)
    num_bytes = FORMATS.get(format_name).nbytes(matrix, nnz, itemsize, pattern)
    if grid is not None:
        num_bytes += scale_bytes(matrix, grid)
    codes: list[CodesEntry] = []

    def arrays() -> Arrays:
        held = layer.matrix()
        held = held if grid is None else held.on_levels(grid)
        stored = dict(encode(held, format_name)[1])
        if held.levels is not None:
            stored, entry = as_codes(stored, held.levels)
            codes[:] = [entry]
        return {array_key(slot.name, array): data for array, data in stored.items()}

    def entry(file: str, keys: tuple[str, ...]) -> TensorEntry:
        return SparseEntry(
            file=file,
            shape=slot.shape,
            dtype=dtype_name(slot.tensor.dtype),
            format=format_name,
            arrays=tuple(sorted(key.removeprefix(slot.name + SEPARATOR) for key in keys)),
            mask=_mask_entry(layer),
            holder="masked" if layer.form == "masked" else "compact",
            mode=getattr(layer, "mode", None),
            codes=codes[0] if codes else None,
        )

    return Piece(slot.name, num_bytes, arrays, entry)


def _mask_piece(slot: Slot, layer: SparseLayer, owner: str) -> Piece:
    rows, columns = layer.matrix_shape

    def arrays() -> Arrays:
        return {array_key(slot.name, MASK_ARRAY): layer.matrix().positions.bits()}

    def entry(file: str, _: tuple[str, ...]) -> TensorEntry:
        return TiedEntry(to=owner, mask=_mask_entry(layer), file=file)

    return Piece(slot.name, rows * row_bytes(columns), arrays, entry)


def _mask_entry(layer: SparseLayer) -> MaskEntry:
    return MaskEntry(pattern=str(layer.pattern), nnz=layer.nnz, sha256=layer.mask_digest())


def transposed(inventory: Inventory, paths: Sequence[str]) -> Inventory:
    """The same with the weights of some layers dense and turned around."""
    slots = dict(inventory.slots)
    for path in paths:
        slot = slots.get(f"{path}.weight")
        if slot is not None:
            dense = slot.tensor if slot.layer is None else slot.layer.dense_weight()
            turned = dense.detach().t().contiguous()
            slots[slot.name] = replace(slot, tensor=turned, layer=None)
    return replace(inventory, slots=slots)


def check_kind(kind: str) -> ArtifactKind:
    """`kind` if it is one of the two there are."""
    for known in get_args(ArtifactKind):
        if kind == known:
            return known  # type: ignore[no-any-return]
    raise InputError(
        f"format: must be 'packed' (small, for gossamer) or 'dense' (zeros kept, for any"
        f" safetensors reader); got {kind!r}."
    )
