# SPDX-License-Identifier: Apache-2.0
"""`load`: a model from whatever file or directory holds it, in the state it was saved in.

`load_telling` also says which layers' zeros became masks, `load_skeleton` gives the model without
weights, and `read_beside` the files that belong beside them, such as the tokenizer. `streaming.py`
gives models whose weights stay in their file.
"""

from pathlib import Path

from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io.artifact import (
    artifact_skeleton,
    fill,
    find_artifact,
    load_artifact,
    open_artifact,
    unwrap,
)
from gossamer.io.artifact.beside import BESIDE_FILES, CONFIG_FILE, beside_limit
from gossamer.io.gguf import gguf_tokenizer_files, is_gguf, load_gguf
from gossamer.io.huggingface import load_pretrained, pretrained_skeleton
from gossamer.io.huggingface.sentences import read_pooling
from gossamer.io.onnx import is_onnx, load_onnx
from gossamer.io.pruners import AdoptedLayer, adopt_zeros, describe_foreign
from gossamer.io.pruners.plain_checkpoint import apply_masks, fold_pruned, read_tensors_of
from gossamer.io.safe_files.directories import AnyPath
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE
from gossamer.named_files import is_inside, read_inside

__all__ = [
    "load",
    "load_skeleton",
    "load_telling",
    "read_beside",
]


def load(
    path: AnyPath,
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
            Hugging Face directory), a gguf file of a decoder, or an ONNX file (see
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
    path: AnyPath,
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
        result, knows_masks = load_artifact(path, model, max_bytes)
    elif found.is_file() and (is_gguf(found) or is_onnx(found)):
        kind, read = ("a gguf", load_gguf) if is_gguf(found) else ("an ONNX", load_onnx)
        if model is not None:
            raise InputError(f"{found}: {kind} file describes its own model; pass no model=.")
        result = read(found, max_bytes=max_bytes)
    elif model is not None:
        result = _load_checkpoint(found, model, max_bytes)
    elif found.is_dir() and is_inside(found, CONFIG_FILE):
        result = load_pretrained(found, max_bytes=max_bytes)
    else:
        why = describe_foreign(found) or (
            "is no gossamer artifact and does not describe its architecture. Build the model and"
            " pass it: gossamer.load(path, model=model)."
        )
        raise ArtifactError(f"{found}: {why}")
    if detect_masks or (detect_masks is None and not knows_masks):
        return result, adopt_zeros(unwrap(result))
    return result, []


def load_skeleton(path: AnyPath) -> tuple[nn.Module, float | None]:
    """The model of an artifact or of a Hugging Face directory on the meta device: no weights.

    Returns:
        The module, dense, and the kept fraction of its masked layers; None if it has none.
    """
    found, has_manifest = find_artifact(path)
    if not has_manifest:
        return pretrained_skeleton(found), None
    return artifact_skeleton(path)


def read_beside(path: AnyPath) -> dict[str, bytes]:
    """What belongs beside the weights at `path`, by file name.

    Args:
        path: an artifact, whose manifest verifies the files it lists; a Hugging Face directory; a
            gguf file, whose tokenizer becomes tokenizer.json, or lies in its folder if that cannot
            be; an ONNX file, whose folder has them; any other file has nothing beside it.
    """
    found, has_manifest = find_artifact(path)
    if is_onnx(found) and found.is_file():
        found = found.parent
    elif found.is_file():
        if not is_gguf(found):
            return {}
        try:
            return gguf_tokenizer_files(found)
        except ArtifactError:
            if not is_inside(found.parent, TOKENIZER_FILE):
                raise
            found = found.parent
    verified: dict[str, bytes] = {}
    if has_manifest:
        with open_artifact(path) as artifact:
            listed = sorted(BESIDE_FILES & set(artifact.manifest.files))
            verified = {name: artifact.document(name) for name in listed}
            found = artifact.path
    others = [name for name in sorted(BESIDE_FILES - set(verified)) if is_inside(found, name)]
    files = {name: read_inside(found, name, beside_limit(name)) for name in others}
    return verified | files | ({} if has_manifest else read_pooling(found))


def _load_checkpoint(path: Path, model: nn.Module, max_bytes: int | None) -> nn.Module:
    """An ordinary checkpoint, by the same rules as a dense artifact; masks it stores are kept."""
    tensors = read_tensors_of(path, max_bytes=max_bytes)
    layers = {f"{name}.weight" for name, _ in unwrap(model).named_modules() if name}
    # Masks of other Parameters are in their zeros.
    masks = {name: m for name, m in fold_pruned(tensors, str(path)).items() if name in layers}
    result = fill(model, tensors, path)
    apply_masks(unwrap(result), masks, str(path))
    return result
