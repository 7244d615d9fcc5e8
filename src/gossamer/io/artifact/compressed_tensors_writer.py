# SPDX-License-Identifier: Apache-2.0
"""`save_compressed_tensors`: pruned transformers models as compressed-tensors 0.14 reads them.

Later versions of compressed-tensors dropped the sparse formats, so this is for tools that stayed.
The directory is an ordinary Hugging Face one without a manifest; `gossamer.load` reads it.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.io.artifact.inventory import Inventory, as_stored, take_inventory, unwrap
from gossamer.io.artifact.manifest import CONFIG_FILE, WHOLE
from gossamer.io.artifact.opened import check_replaceable
from gossamer.io.artifact.packing import BYTES_PER_PIECE, Arrays, plan_pieces
from gossamer.io.artifact.writer import check_beside
from gossamer.io.huggingface import config_of
from gossamer.io.pruners import SINGLE_FILE, bitmask_settings, row_offsets
from gossamer.io.safe_files.directories import replace_directory
from gossamer.io.safe_files.documents import pretty_json
from gossamer.io.safe_files.tensors import write_file
from gossamer.nn.layers import SparseLayer

_WEIGHT = ".weight"


def save_compressed_tensors(
    model: nn.Module,
    path: os.PathLike[str] | str,
    *,
    beside: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a transformers model to the directory `path` in the format sparse-bitmask.

    Masked and compact Linear layers are compressed, everything else is stored as it is; kept
    values keep their bits. The directory appears whole or not at all.

    Args:
        model: a transformers model, which has the config.json that names the format.
        path: a directory that does not exist, is empty, or holds an artifact.
        beside: files that go along unread, such as tokenizer.json; see `read_beside`.

    Raises:
        InputError: not a transformers model, or nothing in it is sparse.
        ArtifactError: `path` holds something that is not an artifact.
    """
    stored = as_stored(unwrap(model))
    config = config_of(stored)
    if config is None:
        raise InputError(
            f"{type(model).__name__}: compressed-tensors files need the config.json of a"
            " transformers model. Use the format 'packed' or 'dense' instead."
        )
    inventory = take_inventory(stored)
    sparse = _sparse_matrices(inventory)
    if not sparse:
        raise InputError("the model has no sparse Linear layer, so there is nothing to compress.")
    documents = check_beside(beside or {})
    documents[CONFIG_FILE] = pretty_json(config | _settings(sparse))
    pieces, _ = plan_pieces(inventory, "dense")
    needed = sum(piece.num_bytes + BYTES_PER_PIECE for piece in pieces)
    with replace_directory(path, needed, check_replaceable) as folder, torch.no_grad():
        arrays: Arrays = {}
        for piece in pieces:
            if piece.name not in sparse:
                arrays[piece.name] = piece.pack(SINGLE_FILE)[0][WHOLE]
                continue
            matrix, prefix = sparse[piece.name].matrix(), piece.name.removesuffix(_WEIGHT)
            arrays |= {
                f"{prefix}.shape": torch.tensor(matrix.shape, dtype=torch.int64),
                f"{prefix}.compressed": matrix.values,
                f"{prefix}.bitmask": matrix.positions.bits(),
                f"{prefix}.row_offsets": row_offsets(matrix.mask()),
            }
        write_file(folder / SINGLE_FILE, arrays)
        for name, raw in documents.items():
            write_file(folder / name, raw)
    return Path(path)


def _sparse_matrices(inventory: Inventory) -> dict[str, SparseLayer]:
    """Sparse weights with two dimensions, by name."""
    sparse = {}
    for name, slot in inventory.slots.items():
        if slot.layer is None or len(slot.shape) != 2:
            continue
        if name in inventory.tied:
            raise InputError(
                f"{name}: shares its weight with {inventory.tied[name]}, and sparse-bitmask files"
                " cannot say that one of the two has a mask. Untie them first."
            )
        sparse[name] = slot.layer
    return sparse


def _settings(sparse: dict[str, SparseLayer]) -> dict[str, Any]:
    kept = sum(layer.nnz for layer in sparse.values())
    total = sum(math.prod(layer.matrix_shape) for layer in sparse.values())
    patterns = {str(layer.pattern) for layer in sparse.values()}
    structure = "2:4" if patterns == {"2:4"} else "unstructured"
    layers = [name.removesuffix(_WEIGHT) for name in sparse]
    return bitmask_settings(layers, 1 - kept / max(1, total), structure)
