# SPDX-License-Identifier: Apache-2.0
"""A model from an artifact, and ordinary tensors into a model by the same rules."""

import math
from pathlib import Path

import torch
from torch import nn

from gossamer.errors import ArtifactError
from gossamer.io.artifact.agreement import memory_needed
from gossamer.io.artifact.architecture import build
from gossamer.io.artifact.decode import decode_all
from gossamer.io.artifact.fitting import check_fit, check_materialised
from gossamer.io.artifact.inventory import unwrap
from gossamer.io.artifact.manifest import DenseEntry, Manifest, SparseEntry, TransformersNode
from gossamer.io.artifact.opened import OpenArtifact, open_artifact
from gossamer.io.artifact.placing import Placement
from gossamer.io.safe_files import check_memory
from gossamer.io.safe_files.directories import AnyPath
from gossamer.io.safe_files.tensors import dtype_name


def load_artifact(
    path: AnyPath, model: nn.Module | None, max_bytes: int | None
) -> tuple[nn.Module, bool]:
    """The model, and whether the artifact says which of its layers have masks."""
    with open_artifact(path) as artifact:
        manifest, where = artifact.manifest, str(artifact.path)
        check_memory(memory_needed(manifest), artifact.num_bytes, max_bytes, where)
        target = unwrap(model) if model is not None else _skeleton(artifact)
        matched = check_fit(manifest, target, where, exact_dtypes=model is not None)
        arrays, _ = artifact.read()
        decoded = decode_all(manifest, arrays, where)
        if model is None and isinstance(manifest.architecture, TransformersNode):
            target = _skeleton(artifact, device="cpu")
    result = Placement(target, manifest, matched, decoded, in_place=model is not None).run()
    if model is None:
        check_materialised(result, where)
        model = result.eval()
    return model if result is target else result, manifest.kind != "dense"


def artifact_skeleton(path: AnyPath) -> tuple[nn.Module, float | None]:
    """The model without weights, dense, and the kept fraction of its masked layers if any."""
    with open_artifact(path) as artifact:
        masks = [e for e in artifact.manifest.tensors.values() if isinstance(e, SparseEntry)]
        entries = sum(math.prod(entry.shape) for entry in masks)
        kept = sum(entry.mask.nnz for entry in masks)
        return _skeleton(artifact), kept / entries if entries else None


def fill(model: nn.Module, tensors: dict[str, torch.Tensor], path: Path) -> nn.Module:
    """`model` with the tensors of an ordinary checkpoint, filled in place as by a dense artifact.

    A model that is itself a single layer may come back as another object.
    """
    entries = {
        name: DenseEntry(file=path.name, shape=tuple(t.shape), dtype=dtype_name(t.dtype))
        for name, t in tensors.items()
    }
    manifest = Manifest.model_construct(tensors=entries)
    target = unwrap(model)
    matched = check_fit(manifest, target, str(path), exact_dtypes=True)
    result = Placement(target, manifest, matched, {**tensors}, in_place=True).run()
    return model if result is target else result


def _skeleton(artifact: OpenArtifact, device: str = "meta") -> nn.Module:
    manifest = artifact.manifest
    if manifest.architecture is None:
        raise ArtifactError(
            f"{artifact.path}: does not describe its architecture, because the model is not made of"
            " known parts only. Build the model and pass it: gossamer.load(path, model=model)."
        )
    # A module that is shared is described under each of its names but stored once. Buffers that
    # are not saved count too.
    most = 2 * len(manifest.tensors) + 64 * len(manifest.shared_modules) + 64
    return build(manifest.architecture, max_tensors=most, config=artifact.config(), device=device)
