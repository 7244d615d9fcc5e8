# SPDX-License-Identifier: Apache-2.0
"""Ordinary safetensors checkpoints with exact zeros: what any other pruner writes.

Zeros are the only trace such a file has of its mask, so a kept weight that happens to be 0 counts
as pruned here, and `-0.0` is a zero. Some tools write their masks beside the weights: these go to
the layers as they are.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files import MAX_MANIFEST_BYTES, check_file_name, check_memory, check_name
from gossamer.io.safe_files.directories import AnyPath
from gossamer.io.safe_files.documents import parse_json
from gossamer.io.safe_files.tensors import read_header, read_tensors
from gossamer.named_files import is_inside, open_inside, open_named, read_inside, size_of
from gossamer.nn import MaskedWeight
from gossamer.nn.forms import can_mask, mask_in, to_masked
from gossamer.nn.surgery import disable_fast_paths, replace_module
from gossamer.patterns import Pattern, detect_pattern

Tensors = dict[str, torch.Tensor]

ORIGINAL, MASK = "_orig", "_mask"
_WEIGHT = ".weight"


def as_mask(tensor: torch.Tensor, where: str) -> torch.Tensor:
    """A mask of numbers as bool; InputError unless it is made of 0 and 1."""
    keep = tensor != 0
    if not torch.equal(keep.to(tensor.dtype), tensor):
        raise InputError(f"{where}: a mask holds 0 and 1 only; this one holds other numbers.")
    return keep


def fold_pruned(tensors: Tensors, where: str) -> Tensors:
    """Replace `<name>_orig` and `<name>_mask` of torch.nn.utils.prune by `<name>`, in place.

    Returns:
        Masks bool [out, everything else] of the folded tensors with 2 or more dimensions.
    """
    masks: Tensors = {}
    folded = [name.removesuffix(ORIGINAL) for name in tensors if name.endswith(ORIGINAL)]
    for name in folded:
        if name + MASK not in tensors:
            continue
        place = f"{where}: tensor {name + MASK!a}"
        original, stored = tensors[name + ORIGINAL], tensors[name + MASK]
        if original.shape != stored.shape or name in tensors:
            raise ArtifactError(
                f"{place}: is {list(stored.shape)} for a weight of {list(original.shape)}, or"
                f" {name!a} is stored a second time."
            )
        try:
            mask = as_mask(stored, place)
        except InputError as error:
            raise ArtifactError(str(error)) from error
        del tensors[name + ORIGINAL], tensors[name + MASK]
        tensors[name] = torch.where(mask, original, 0)
        if mask.ndim >= 2:
            masks[name] = mask.reshape(mask.shape[0], -1)
    return masks


def apply_masks(model: nn.Module, masks: Tensors, where: str) -> None:
    """Turn the layers whose weights have a mask into masked ones, in place.

    The weights hold their zeros already. A mask that keeps everything says nothing; the mask of a
    weight that is no Linear or Conv2d, such as a lookup table, is in its zeros.

    Args:
        model: just filled with the weights the masks belong to.
        masks: bool [out, everything else] by the name of the weight in the file.
        where: the file, for messages.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    prefix = str(getattr(model, "base_model_prefix", ""))
    for name, mask in masks.items():
        path = name.removesuffix(_WEIGHT)
        # transformers reads files of a bare model into one with a head and back.
        paths = (path, f"{prefix}.{path}", path.removeprefix(f"{prefix}."))
        known = next((known for known in paths if known in modules), None)
        if known is None:
            raise ArtifactError(f"{where}: {name!a} has a mask, but the model has no such layer.")
        layer = modules[known]
        if isinstance(layer, MaskedWeight) or not can_mask(layer) or bool(mask.all()):
            continue
        masked = mask_in(model, layer, mask, detect_pattern(mask))
        modules = {key: masked if module is layer else module for key, module in modules.items()}
    disable_fast_paths(model)


INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_SUFFIX = ".safetensors"
# Rounding makes zeros, too: of normal weights 12 % in 4 bits (gguf's Q4_0), 20 % in 3 bits. A layer
# with at least this many was pruned.
DEFAULT_MIN_SPARSITY = 0.3


@dataclass(frozen=True)
class DetectedMask:
    """The zeros of one weight: `mask` bool [out, everything else], its pattern and sparsity."""

    mask: torch.Tensor
    pattern: Pattern
    sparsity: float


@dataclass(frozen=True)
class DenseCheckpoint:
    """All tensors of a checkpoint by name, and the masks of those with enough zeros."""

    tensors: Tensors
    masks: dict[str, DetectedMask]


@dataclass(frozen=True)
class AdoptedLayer:
    """One layer that `adopt_zeros` turned into a masked one."""

    name: str
    pattern: Pattern
    sparsity: float


def read_dense_checkpoint(
    path: AnyPath,
    min_sparsity: float = DEFAULT_MIN_SPARSITY,
    *,
    max_bytes: int | None = None,
) -> DenseCheckpoint:
    """Tensors and detected masks of a safetensors file or a Hugging Face directory.

    A state dict of torch.nn.utils.prune (`weight_orig` and `weight_mask`) gives `weight` and the
    mask it stores, whatever its sparsity.

    Args:
        path: one file, or a directory with `model.safetensors` or a sharded index.
        min_sparsity: floating point tensors of 2 or more dimensions with at least this fraction
            of zeros (and not zeros only) get a mask.
        max_bytes: refuse checkpoints that need more memory; default: what is available.
    """
    _check_min_sparsity(min_sparsity)
    tensors = read_tensors_of(path, max_bytes=max_bytes)
    masks = {
        name: DetectedMask(mask, detect_pattern(mask), 1 - float(mask.float().mean()))
        for name, mask in fold_pruned(tensors, str(path)).items()
        if mask.numel() and tensors[name].is_floating_point()
    }
    for name, tensor in tensors.items():
        found = None if name in masks else _detect(tensor, min_sparsity)
        if found is not None:
            masks[name] = found
    return DenseCheckpoint(tensors, masks)


def adopt_zeros(model: nn.Module, min_sparsity: float = DEFAULT_MIN_SPARSITY) -> list[AdoptedLayer]:
    """Turn Linear and Conv2d layers with exact zeros into masked ones, in place.

    The mask is where the weight is not zero, the pattern is detected; outputs do not change.
    Layers below `min_sparsity`, of zeros only, masked already, tied to something that cannot be
    masked (an embedding), or that are the model itself are left alone. Layers that share a weight
    share its mask.
    """
    _check_min_sparsity(min_sparsity)
    holders: dict[nn.Parameter, list[tuple[str, nn.Module]]] = {}
    for name, layer in model.named_modules():
        for param in layer._parameters.values():
            if param is not None:
                holders.setdefault(param, []).append((name, layer))
    adopted = []
    for weight, places in holders.items():
        plain = all(
            layer is not model
            and not isinstance(layer, MaskedWeight)
            and can_mask(layer)
            and layer._parameters.get("weight") is weight
            for _, layer in places
        )
        found = _detect(weight, min_sparsity) if plain else None
        if found is None:
            continue
        masked = [to_masked(layer, found.mask, found.pattern) for _, layer in places]
        for (name, layer), new in zip(places, masked, strict=True):
            new._buffers["mask_bits"], new._buffers["_mask"] = masked[0].mask_bits, masked[0]._mask
            replace_module(model, layer, new)
            adopted.append(AdoptedLayer(name, found.pattern, found.sparsity))
    disable_fast_paths(model)
    return adopted


def adoption_text(adopted: Sequence[AdoptedLayer], where: str) -> str:
    """What to tell people about zeros that became masks."""
    mean = sum(layer.sparsity for layer in adopted) / len(adopted)
    patterns = ", ".join(sorted({str(layer.pattern) for layer in adopted}))
    return (
        f"{where}: exact zeros of {len(adopted)} layers ({mean:.0%} of their weights, {patterns})"
        " are taken as their masks."
    )


def read_tensors_of(path: AnyPath, *, max_bytes: int | None = None) -> Tensors:
    """All tensors of a safetensors file, or of a directory that holds one checkpoint."""
    path = Path(path)
    if not path.exists():
        raise ArtifactError(f"{path}: there is no such file or directory.")
    expected: dict[str, str] | None = None
    with ExitStack() as stack:
        if path.is_dir():
            names, expected = _files_of(path)
            files = {name: stack.enter_context(open_inside(path, name)) for name in names}
        else:
            files = {path.name: stack.enter_context(open_named(path))}
        stored = sum(map(size_of, files.values()))
        check_memory(stored, stored, max_bytes, str(path))
        tensors: Tensors = {}
        for file_name, file in files.items():
            where = str((path if path.is_dir() else path.parent) / file_name)
            found = read_tensors(file, read_header(file, size_of(file), where), where)
            for name, tensor in found.items():
                if name in tensors:
                    raise ArtifactError(f"{where}: tensor {name!a} is in another file too.")
                if expected is not None and expected.get(name) != file_name:
                    raise ArtifactError(f"{where}: tensor {name!a} is not in {INDEX_FILE}.")
                tensors[name] = tensor
    missing = sorted(set(expected or ()) - set(tensors))
    if missing:
        raise ArtifactError(
            f"{path}: {len(missing)} tensors of {INDEX_FILE} are in no file, first {missing[0]!a}."
        )
    return tensors


def _files_of(folder: Path) -> tuple[list[str], dict[str, str] | None]:
    """The files of a checkpoint directory and, if it is sharded, which tensor is where."""
    if is_inside(folder, INDEX_FILE):
        index = str(folder / INDEX_FILE)
        content = parse_json(read_inside(folder, INDEX_FILE, MAX_MANIFEST_BYTES), index)
        weight_map = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(weight_map, dict) or not weight_map:
            raise ArtifactError(f"{index}: has no weight_map.")
        for name, file in weight_map.items():
            check_name(name, index)
            if not isinstance(file, str) or not check_file_name(file, index).endswith(_SUFFIX):
                raise ArtifactError(f"{index}: {ascii(file)[:80]} is no safetensors file.")
            if not is_inside(folder, file):
                raise ArtifactError(f"{index}: names {file!a}, which is not there.")
        return sorted(set(weight_map.values())), weight_map
    if is_inside(folder, SINGLE_FILE):
        return [SINGLE_FILE], None
    found = sorted(file.name for file in folder.glob(f"*{_SUFFIX}"))
    if len(found) != 1:
        names = ", ".join(found) or "none"
        raise ArtifactError(
            f"{folder}: expected {SINGLE_FILE}, {INDEX_FILE} or one *.safetensors file; found"
            f" {names}. Checkpoints in other formats (.bin, .pt) are pickles and are not read."
        )
    return found, None


def _detect(tensor: torch.Tensor, min_sparsity: float) -> DetectedMask | None:
    if tensor.ndim < 2 or tensor.numel() == 0 or not tensor.is_floating_point():
        return None
    mask_RK = (tensor.detach() != 0).reshape(tensor.shape[0], -1)
    num_kept = int(mask_RK.sum())
    sparsity = 1 - num_kept / mask_RK.numel()
    if num_kept == 0 or sparsity < min_sparsity or sparsity == 0:
        return None
    return DetectedMask(mask_RK, detect_pattern(mask_RK), sparsity)


def _check_min_sparsity(value: float) -> None:
    if not 0 <= value < 1:
        raise InputError(f"min_sparsity: must be in [0, 1), got {value}.")
