# SPDX-License-Identifier: Apache-2.0
"""Masks that checkpoints of other tools hold beside their weights, and the layers they go to."""

import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.nn import MaskedWeight
from gossamer.nn.forms import can_mask, mask_in
from gossamer.nn.surgery import disable_fast_paths
from gossamer.patterns import detect_pattern

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
