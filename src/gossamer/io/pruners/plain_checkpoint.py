# SPDX-License-Identifier: Apache-2.0
"""Ordinary safetensors checkpoints: their tensors, and the masks that some tools write beside them.

`read_tensors_of` reads a file or a folder. `fold_pruned` takes stored masks out of its tensors, and
`apply_masks` gives them to the layers as they are. `SINGLE_FILE` is the name that readers look for.
"""

from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files.checks import check_file_name, check_memory, check_name
from gossamer.io.safe_files.directories import AnyPath
from gossamer.io.safe_files.documents import read_object
from gossamer.io.safe_files.tensors import read_header, read_tensors
from gossamer.named_files import is_inside, open_inside, open_named, size_of
from gossamer.nn.forms import is_ordinary, mask_in
from gossamer.nn.surgery import disable_fast_paths
from gossamer.patterns import detect_pattern

__all__ = [
    "MASK",
    "ORIGINAL",
    "SINGLE_FILE",
    "Tensors",
    "apply_masks",
    "as_mask",
    "fold_pruned",
    "read_tensors_of",
]

Tensors = dict[str, torch.Tensor]

ORIGINAL, MASK = "_orig", "_mask"
_WEIGHT = ".weight"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_SUFFIX = ".safetensors"


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
        if not is_ordinary(layer) or bool(mask.all()):
            continue
        masked = mask_in(model, layer, mask, detect_pattern(mask))
        modules = {key: masked if module is layer else module for key, module in modules.items()}
    disable_fast_paths(model)


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
        weight_map = read_object(folder, INDEX_FILE).get("weight_map")
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
