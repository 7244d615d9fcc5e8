# SPDX-License-Identifier: Apache-2.0
"""`save`: a model to a directory that appears whole or not at all."""

import math
import os
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.io.artifact.architecture import build, describe
from gossamer.io.artifact.inventory import as_stored, take_inventory, unwrap
from gossamer.io.artifact.manifest import (
    BESIDE_FILES,
    CARD_FILE,
    CONFIG_FILE,
    MANIFEST_FILE,
    MAX_BESIDE_BYTES,
    MAX_RECIPE,
    REPORT_FILE,
    FileEntry,
    Manifest,
    SparseEntry,
    TensorEntry,
    TransformersNode,
    manifest_bytes,
    parse_manifest,
)
from gossamer.io.artifact.opened import check_replaceable
from gossamer.io.artifact.packing import (
    SHARD_BYTES,
    ArtifactKind,
    check_kind,
    cut_shards,
    plan_pieces,
    transposed,
)
from gossamer.io.artifact.piece import Arrays, Piece
from gossamer.io.huggingface import config_of
from gossamer.io.safe_files.directories import replace_directory
from gossamer.io.safe_files.documents import pretty_json
from gossamer.io.safe_files.tensors import DTYPE_NAMES, write_file
from gossamer.nn.surgery.slimming import conv1d_paths

INDEX_FILE = "model.safetensors.index.json"
# Room for headers, manifest and card in the free-space check.
_BYTES_PER_PIECE = 1024


class HasDict(Protocol):
    """A report: anything that gives itself as JSON-ready data."""

    def to_dict(self) -> Mapping[str, Any]:
        """The data."""


def save(
    model: nn.Module,
    path: os.PathLike[str] | str,
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
    kind = check_kind(format)
    if recipe is not None and len(recipe) > MAX_RECIPE:
        raise InputError(f"recipe: at most {MAX_RECIPE} characters, got {len(recipe)}.")
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected a torch module, got {type(model).__name__}.")
    stored = as_stored(unwrap(model))
    inventory = take_inventory(stored)
    config = config_of(stored)
    architecture = describe(stored, config)
    if kind == "dense" and isinstance(architecture, TransformersNode) and architecture.linear:
        # What any tool reads has the layers that transformers itself would have.
        architecture = architecture.model_copy(update={"linear": False})
        published = build(architecture, max_tensors=2**31, config=config)
        inventory = transposed(inventory, conv1d_paths(published))
    pieces, entries = plan_pieces(inventory, kind)
    shards = cut_shards(pieces, SHARD_BYTES)
    documents = {**check_beside(beside or {}), **_documents(config, report)}
    needed = sum(piece.num_bytes + _BYTES_PER_PIECE for piece in pieces)
    needed += sum(len(raw) for raw in documents.values()) + _BYTES_PER_PIECE

    with replace_directory(path, needed, check_replaceable) as folder, torch.no_grad():
        files: dict[str, FileEntry] = {}
        for number, shard in enumerate(shards, start=1):
            file = _shard_name(kind, number, len(shards))
            files[file] = _write_shard(folder / file, shard, entries)
        if kind == "dense" and len(shards) > 1:
            documents[INDEX_FILE] = _index(entries, needed)
        for file, raw in documents.items():
            files[file] = _write(folder / file, raw)
        manifest = Manifest(
            producer=producer(),
            kind=kind,
            files=files,
            tensors=entries,
            shared_modules=inventory.shared_modules,
            architecture=architecture,
            recipe=recipe,
        )
        text = _default_card(manifest, Path(path).name) if card is None else card
        _write(folder / CARD_FILE, text.encode("utf-8"))
        raw = manifest_bytes(manifest)
        # Read back before anything is replaced: a manifest over the limits would be lost data.
        parse_manifest(raw)
        _write(folder / MANIFEST_FILE, raw)
    return Path(path)


def _documents(
    config: dict[str, Any] | None, report: Mapping[str, Any] | HasDict | None
) -> dict[str, bytes]:
    documents = {}
    if config is not None:
        documents[CONFIG_FILE] = pretty_json(config)
    if report is not None:
        content = report if isinstance(report, Mapping) else report.to_dict()
        try:
            documents[REPORT_FILE] = pretty_json(dict(content))
        except (TypeError, ValueError) as error:
            raise InputError(f"report: cannot be written as JSON ({error}).") from error
    return documents


def _write_shard(path: Path, shard: list[Piece], entries: dict[str, TensorEntry]) -> FileEntry:
    arrays: Arrays = {}
    for piece in shard:
        own = piece.arrays()
        entries[piece.name] = piece.entry(path.name, tuple(own))
        arrays.update(own)
    return _write(path, arrays)


def _write(path: Path, content: bytes | Arrays) -> FileEntry:
    file = write_file(path, content)
    return FileEntry(size=file.size, sha256=file.sha256)


def _shard_name(kind: ArtifactKind, number: int, total: int) -> str:
    # The names transformers looks for, so that a dense artifact is a checkpoint it can read.
    if kind == "dense":
        return "model.safetensors" if total == 1 else f"model-{number:05}-of-{total:05}.safetensors"
    return f"packed-{number:05}-of-{total:05}.safetensors"


def _index(entries: Mapping[str, TensorEntry], total_bytes: int) -> bytes:
    weight_map = {name: entry.file for name, entry in entries.items() if entry.kind == "dense"}
    return pretty_json({"metadata": {"total_size": total_bytes}, "weight_map": weight_map})


def producer() -> str:
    """Name and version of this gossamer, for manifests."""
    try:
        return f"gossamer {version('gossamer')}"
    except PackageNotFoundError:
        return "gossamer (not installed)"


def check_beside(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The same files, or InputError for a name that is not in the list or content too large."""
    for name, raw in files.items():
        if name not in BESIDE_FILES:
            raise InputError(
                f"beside: {ascii(name)[:80]} is not carried along; known:"
                f" {', '.join(sorted(BESIDE_FILES))}."
            )
        if not isinstance(raw, bytes) or len(raw) > MAX_BESIDE_BYTES:
            raise InputError(
                f"beside: {name} must be at most {MAX_BESIDE_BYTES} bytes, got"
                f" {len(raw) if isinstance(raw, bytes) else type(raw).__name__}."
            )
    return dict(files)


def _default_card(manifest: Manifest, name: str) -> str:
    """Markdown with the measured facts of one artifact, for people to edit.

    It holds no text from the model: names of layers are untrusted and would need escaping.
    """
    title = re.sub(r"[^A-Za-z0-9._ -]", "_", name) or "model"
    sparse = [entry for entry in manifest.tensors.values() if isinstance(entry, SparseEntry)]
    size = sum(entry.size for entry in manifest.files.values())
    lines = [
        f"# {title}",
        "",
        f"Written by {manifest.producer} as a {manifest.kind} artifact: {size} bytes.",
        "",
    ]
    if sparse:
        numel = sum(math.prod(entry.shape) for entry in sparse)
        nnz = sum(entry.mask.nnz for entry in sparse)
        dense = sum(math.prod(e.shape) * DTYPE_NAMES[e.dtype].itemsize for e in sparse)
        patterns = sorted({entry.mask.pattern for entry in sparse})
        lines += [
            f"- {len(sparse)} sparse layers, patterns: {', '.join(patterns)}",
            f"- {nnz} of {numel} weights kept: sparsity {1 - nnz / max(numel, 1):.4f}",
            f"- these weights would take {dense} bytes dense",
            "",
        ]
    call = "gossamer.load(path)" if manifest.architecture else "gossamer.load(path, model=model)"
    lines += [f"Load with `{call}`.", "", "Quality, data and licence: not stated yet.", ""]
    return "\n".join(lines)
