# SPDX-License-Identifier: Apache-2.0
"""`load`: a saved model back, in the state it was saved in."""

import math
import os
from pathlib import Path

import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io.artifact.agreement import memory_needed
from gossamer.io.artifact.architecture import build
from gossamer.io.artifact.decode import Decoded, decode_all
from gossamer.io.artifact.fitting import check_fit, check_materialised
from gossamer.io.artifact.inventory import unwrap
from gossamer.io.artifact.manifest import (
    CONFIG_FILE,
    DenseEntry,
    Manifest,
    SparseEntry,
    TransformersNode,
)
from gossamer.io.artifact.opened import OpenArtifact, find_artifact, open_artifact
from gossamer.io.artifact.placing import Placement
from gossamer.io.gguf.file import is_gguf, load_gguf
from gossamer.io.huggingface.directory import load_pretrained, pretrained_skeleton
from gossamer.io.onnx.file import is_onnx
from gossamer.io.onnx.importer import load_onnx
from gossamer.io.pruners.dense_checkpoint import AdoptedLayer, adopt_zeros, read_tensors_of
from gossamer.io.pruners.foreign_file import describe_foreign
from gossamer.io.pruners.stored_masks import apply_masks, fold_pruned
from gossamer.io.safe_files.limits import check_memory
from gossamer.io.safe_files.tensor_header import dtype_name
from gossamer.named_files import is_inside


def load(
    path: os.PathLike[str] | str,
    model: nn.Module | None = None,
    *,
    detect_masks: bool | None = None,
    max_bytes: int | None = None,
) -> nn.Module:
    """The model in `path`: masked layers come back masked, compact ones compact.

    Nothing in the file is executed; every byte is checked before it is used. Files that hold
    ordinary tensors (checkpoints of other tools, artifacts saved with format="dense") have no
    trace of a mask but zeros: layers with enough of them come back masked, see `adopt_zeros`.

    Args:
        path: an artifact of `gossamer.save`, an ordinary checkpoint (a safetensors file or a
            Hugging Face directory), a gguf file of the Llama family, or an ONNX file (see
            `load_onnx`).
        model: fill this module in place instead of building one; needed where the artifact does
            not describe its architecture. All mismatches are reported at once, and nothing is
            changed unless everything fits. Its training mode is left as it is.
        detect_masks: False: zeros of ordinary tensors stay weights of ordinary layers. True: zeros
            also count where a packed artifact says that a layer has no mask.
        max_bytes: refuse files that need more memory than this; default: what is available.

    Returns:
        `model`, or a new one on the CPU in eval mode. A `model` that is itself a single layer
        cannot be replaced in place: use what is returned.

    Raises:
        ArtifactError: damaged, hostile, of another version, or does not fit the model.
        ResourceError: needs more memory than `max_bytes`.
    """
    return load_telling(path, model, detect_masks=detect_masks, max_bytes=max_bytes)[0]


def load_telling(
    path: os.PathLike[str] | str,
    model: nn.Module | None = None,
    *,
    detect_masks: bool | None = None,
    max_bytes: int | None = None,
) -> tuple[nn.Module, list[AdoptedLayer]]:
    """`load`, and the layers whose zeros became masks."""
    if model is not None and not isinstance(model, nn.Module):
        raise InputError(f"model: expected a torch module, got {type(model).__name__}.")
    found, has_manifest = find_artifact(path)
    knows_masks = False
    if has_manifest:
        result, knows_masks = _load_artifact(path, model, max_bytes)
    elif is_gguf(found) and found.is_file():
        if model is not None:
            raise InputError(f"{found}: a gguf file describes its own model; pass no model=.")
        result = load_gguf(found, max_bytes=max_bytes)
    elif is_onnx(found) and found.is_file():
        if model is not None:
            raise InputError(f"{found}: an ONNX file describes its own model; pass no model=.")
        result = load_onnx(found, max_bytes=max_bytes)
    elif model is not None:
        result = _load_checkpoint(found, model, max_bytes)
    elif found.is_dir() and is_inside(found, CONFIG_FILE):
        result = load_pretrained(found, max_bytes=max_bytes)
    else:
        foreign = describe_foreign(found)
        if foreign is not None:
            raise ArtifactError(f"{found}: {foreign}")
        raise ArtifactError(
            f"{found}: is no gossamer artifact and does not describe its architecture. Build the"
            " model and pass it: gossamer.load(path, model=model)."
        )
    if detect_masks or (detect_masks is None and not knows_masks):
        return result, adopt_zeros(unwrap(result))
    return result, []


def load_skeleton(path: os.PathLike[str] | str) -> tuple[nn.Module, float | None]:
    """The model of an artifact or of a Hugging Face directory on the meta device: no weights.

    Returns:
        The module, dense, and the kept fraction of its masked layers; None if it has none.
    """
    found, has_manifest = find_artifact(path)
    if not has_manifest:
        return pretrained_skeleton(found), None
    with open_artifact(path) as artifact:
        masks = [e for e in artifact.manifest.tensors.values() if isinstance(e, SparseEntry)]
        entries = sum(math.prod(entry.shape) for entry in masks)
        kept = sum(entry.mask.nnz for entry in masks)
        return _skeleton(artifact), kept / entries if entries else None


def _load_artifact(
    path: os.PathLike[str] | str, model: nn.Module | None, max_bytes: int | None
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
            target = build(
                manifest.architecture,
                max_tensors=_max_tensors(manifest),
                config=artifact.config(),
                device="cpu",
            )
    result = Placement(target, manifest, matched, decoded, in_place=model is not None).run()
    knows_masks = manifest.kind != "dense"
    if model is None:
        check_materialised(result, where)
        return result.eval(), knows_masks
    return model if result is target else result, knows_masks


def _skeleton(artifact: OpenArtifact) -> nn.Module:
    manifest = artifact.manifest
    if manifest.architecture is None:
        raise ArtifactError(
            f"{artifact.path}: does not describe its architecture, because the model is not made of"
            " known parts only. Build the model and pass it: gossamer.load(path, model=model)."
        )
    return build(
        manifest.architecture, max_tensors=_max_tensors(manifest), config=artifact.config()
    )


def _max_tensors(manifest: Manifest) -> int:
    # A module that is shared is described under each of its names but stored once. Buffers that
    # are not saved count too.
    return 2 * len(manifest.tensors) + 64 * len(manifest.shared_modules) + 64


def _load_checkpoint(path: Path, model: nn.Module, max_bytes: int | None) -> nn.Module:
    """An ordinary checkpoint, by the same rules as a dense artifact; masks it stores are kept."""
    plain = read_tensors_of(path, max_bytes=max_bytes)
    layers = {f"{name}.weight" for name, _ in unwrap(model).named_modules() if name}
    # Masks of other Parameters are in their zeros.
    masks = {name: m for name, m in fold_pruned(plain, str(path)).items() if name in layers}
    tensors: dict[str, Decoded] = dict(plain)
    entries = {
        name: DenseEntry(file=path.name, shape=tuple(t.shape), dtype=dtype_name(t.dtype))
        for name, t in tensors.items()
        if isinstance(t, torch.Tensor)
    }
    manifest = Manifest.model_construct(
        producer="", kind="dense", files={}, tensors=entries, shared_modules={}
    )
    target = unwrap(model)
    matched = check_fit(manifest, target, str(path), exact_dtypes=True)
    result = Placement(target, manifest, matched, tensors, in_place=True).run()
    apply_masks(result, masks, str(path))
    return model if result is target else result
