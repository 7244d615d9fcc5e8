# SPDX-License-Identifier: Apache-2.0
"""A model to a directory that appears whole or not at all: `save`, `save_compressed_tensors`."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, get_args

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.io.artifact.architecture import build, channels_of, describe, patterns_of
from gossamer.io.artifact.beside import (
    BESIDE_FILES,
    CARD_FILE,
    CONFIG_FILE,
    REPORT_FILE,
    SIGNPOST,
    SIGNPOST_FILE,
    beside_limit,
)
from gossamer.io.artifact.destination import check_replaceable
from gossamer.io.artifact.inventory import Inventory, as_stored, take_inventory, unwrap
from gossamer.io.artifact.manifest import (
    MAX_RECIPE,
    WHOLE,
    ArtifactKind,
    Manifest,
    SparseEntry,
    TransformersNode,
    array_key,
)
from gossamer.io.artifact.packing import (
    BYTES_PER_PIECE,
    SHARD_BYTES,
    Arrays,
    as_published,
    cut_shards,
    plan_pieces,
)
from gossamer.io.huggingface import config_of
from gossamer.io.pruners.compressed_tensors import bitmask_settings, row_offsets
from gossamer.io.pruners.plain_checkpoint import SINGLE_FILE
from gossamer.io.safe_files.directories import AnyPath, replace_directory
from gossamer.io.safe_files.documents import pretty_json
from gossamer.io.safe_files.dtypes import DTYPE_NAMES
from gossamer.io.safe_files.manifests import MANIFEST_FILE, FileEntry, producer
from gossamer.io.safe_files.tensors import write_file
from gossamer.nn.attention import refuse_patterns
from gossamer.nn.layers.parts import SparseLayer
from gossamer.nn.relufication.states import refuse_relus, relu_states

INDEX_FILE = "model.safetensors.index.json"
_WEIGHT = ".weight"


class HasDict(Protocol):
    """A report: anything that gives itself as JSON-ready data."""

    def to_dict(self) -> Mapping[str, Any]:
        """The data."""


def save(
    model: nn.Module,
    path: AnyPath,
    format: str = "packed",
    *,
    report: Mapping[str, Any] | HasDict | None = None,
    recipe: str | None = None,
    card: str | None = None,
    beside: Mapping[str, bytes] | None = None,
) -> Path:
    """Write `model` to the directory `path`; an artifact that is there is replaced atomically.

    Weights keep their dtype and every kept value its bits, NaN and -0.0 included. If anything
    fails, what was at `path` before is unchanged.

    Args:
        model: any module. Masked, compact and packed layers are stored sparse; tied tensors once.
        path: the directory; its parents are created.
        format: "packed" stores the kept weights in the smallest format, for `gossamer.load`;
            "dense" writes ordinary safetensors with exact zeros that any tool reads.
        report: goes into report.json.
        recipe: text of the recipe that made the model, kept in the manifest.
        card: Markdown for card.md instead of the default one.
        beside: files that go along unread, such as tokenizer.json; see `read_beside`.

    Returns:
        The directory.

    Raises:
        InputError: the model holds something that is not a plain tensor.
        ArtifactError: `path` holds something that is not an artifact.
        ResourceError: not enough disk space, or another process is writing there.
    """
    if format not in get_args(ArtifactKind):
        raise InputError(
            f"format: must be 'packed' (small, for gossamer) or 'dense' (zeros kept, for any"
            f" safetensors reader); got {format!r}."
        )
    kind: ArtifactKind = format  # type: ignore[assignment]
    if recipe is not None and len(recipe) > MAX_RECIPE:
        raise InputError(f"recipe: at most {MAX_RECIPE} characters, got {len(recipe)}.")
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected a torch module, got {type(model).__name__}.")
    stored = as_stored(unwrap(model))
    inventory, config = take_inventory(stored), config_of(stored)
    architecture = describe(stored, config)
    if kind == "dense" and isinstance(architecture, TransformersNode) and architecture.linear:
        # What any tool reads has the layers that transformers itself would have.
        architecture = architecture.model_copy(update={"linear": False})
        published = build(architecture, max_tensors=2**31, config=config)
        inventory = as_published(inventory, published)
    pieces, entries = plan_pieces(inventory, kind)
    shards = cut_shards(pieces, SHARD_BYTES)
    documents = _check_beside(beside) | _documents(config, report)
    needed = sum(piece.num_bytes + BYTES_PER_PIECE for piece in pieces)
    needed += sum(map(len, documents.values())) + BYTES_PER_PIECE

    with replace_directory(path, needed, check_replaceable) as folder, torch.no_grad():
        files: dict[str, FileEntry] = {}
        for number, shard in enumerate(shards, start=1):
            file = _shard_name(kind, number, len(shards))
            arrays: Arrays = {}
            for piece in shard:
                own, entries[piece.name] = piece.pack(file)
                arrays |= {array_key(piece.name, array): data for array, data in own.items()}
            files[file] = write_file(folder / file, arrays)
        if kind == "dense" and len(shards) > 1:
            where = {name: entry.file for name, entry in entries.items() if entry.kind == "dense"}
            index = {"metadata": {"total_size": needed}, "weight_map": where}
            documents[INDEX_FILE] = pretty_json(index)
        for file, raw in documents.items():
            files[file] = write_file(folder / file, raw)
        manifest = Manifest(
            producer=producer(),
            kind=kind,
            files=files,
            tensors=entries,
            shared_modules=inventory.shared_modules,
            architecture=architecture,
            recipe=recipe,
            attention=patterns_of(stored),
            channels=channels_of(stored),
            relus=relu_states(stored),
        )
        text = _default_card(manifest, Path(path).name) if card is None else card
        write_file(folder / CARD_FILE, text.encode())
        if kind == "packed" and config is not None:
            write_file(folder / SIGNPOST_FILE, pretty_json(SIGNPOST))
        raw = manifest.to_bytes()
        # Read back before anything is replaced: a manifest over the limits would be lost data.
        Manifest.parse(raw)
        write_file(folder / MANIFEST_FILE, raw)
    return Path(path)


def _documents(
    config: dict[str, Any] | None, report: Mapping[str, Any] | HasDict | None
) -> dict[str, bytes]:
    documents = {} if config is None else {CONFIG_FILE: pretty_json(config)}
    if report is not None:
        content = report if isinstance(report, Mapping) else report.to_dict()
        try:
            documents[REPORT_FILE] = pretty_json(dict(content))
        except (TypeError, ValueError) as error:
            raise InputError(f"report: cannot be written as JSON ({error}).") from error
    return documents


def _shard_name(kind: ArtifactKind, number: int, total: int) -> str:
    # The names transformers looks for, so that a dense artifact is a checkpoint it can read.
    if kind == "dense" and total == 1:
        return SINGLE_FILE
    stem = "model" if kind == "dense" else "packed"
    return f"{stem}-{number:05}-of-{total:05}.safetensors"


def _check_beside(beside: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """The same files, or InputError for a name that is not in the list or content too large."""
    files = dict(beside or {})
    for name, raw in files.items():
        if name not in BESIDE_FILES:
            raise InputError(
                f"beside: {ascii(name)[:80]} is not carried along; known:"
                f" {', '.join(sorted(BESIDE_FILES))}."
            )
        if not isinstance(raw, bytes) or len(raw) > beside_limit(name):
            raise InputError(
                f"beside: {name} must be at most {beside_limit(name)} bytes, got"
                f" {len(raw) if isinstance(raw, bytes) else type(raw).__name__}."
            )
    return files


def _default_card(manifest: Manifest, name: str) -> str:
    """Markdown with the measured facts of one artifact, for people to edit.

    It holds no text from the model: names of layers are untrusted and would need escaping.
    """
    title = re.sub(r"[^A-Za-z0-9._ -]", "_", name) or "model"
    sparse = [entry for entry in manifest.tensors.values() if isinstance(entry, SparseEntry)]
    size = sum(entry.size for entry in manifest.files.values())
    facts = ""
    if sparse:
        numel = sum(math.prod(entry.shape) for entry in sparse)
        nnz = sum(entry.mask.nnz for entry in sparse)
        dense = sum(math.prod(e.shape) * DTYPE_NAMES[e.dtype].itemsize for e in sparse)
        patterns = sorted({entry.mask.pattern for entry in sparse})
        facts = f"""\
- {len(sparse)} sparse layers, patterns: {", ".join(patterns)}
- {nnz} of {numel} weights kept: sparsity {1 - nnz / max(numel, 1):.4f}
- these weights would take {dense} bytes dense

"""
    call = "gossamer.load(path)" if manifest.architecture else "gossamer.load(path, model=model)"
    return f"""\
# {title}

Written by {manifest.producer} as a {manifest.kind} artifact: {size} bytes.

{facts}Load with `{call}`.

Quality, data and licence: not stated yet.
"""


def save_compressed_tensors(
    model: nn.Module, path: AnyPath, *, beside: Mapping[str, bytes] | None = None
) -> Path:
    """Write a transformers model to `path` in the format sparse-bitmask of compressed-tensors.

    The directory is an ordinary Hugging Face one without a manifest; `gossamer.load` reads it, and
    so does compressed-tensors 0.14. Later versions dropped the sparse formats, so this is for tools
    that stayed. Masked and compact Linear layers are compressed, everything else is stored as it
    is; kept values keep their bits. The directory appears whole or not at all.

    Args:
        model: a transformers model, which has the config.json that names the format.
        path: a directory that does not exist, is empty, or holds an artifact.
        beside: files that go along unread, such as tokenizer.json; see `read_beside`.

    Raises:
        InputError: not a transformers model, or nothing in it is sparse.
        ArtifactError: `path` holds something that is not an artifact.
    """
    stored = as_stored(unwrap(model))
    refuse_patterns(stored, "files of compressed-tensors do not say so")
    refuse_relus(stored, "files of compressed-tensors do not say so")
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
    layers = sparse.values()
    kept = sum(layer.nnz for layer in layers)
    total = sum(math.prod(layer.matrix_shape) for layer in layers)
    settings = bitmask_settings(
        [name.removesuffix(_WEIGHT) for name in sparse],
        1 - kept / max(1, total),
        "2:4" if {str(layer.pattern) for layer in layers} == {"2:4"} else "unstructured",
    )
    documents = _check_beside(beside) | {CONFIG_FILE: pretty_json(config | settings)}
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
