# SPDX-License-Identifier: Apache-2.0
"""Ordinary safetensors checkpoints with exact zeros: what any other pruner writes.

Zeros are the only trace such a file has of its mask, so a kept weight that happens to be 0 counts
as pruned here, and `-0.0` is a zero. Some tools write their masks beside the weights: these go to
the layers as they are.

torch.nn.utils.prune keeps `weight_orig` and `weight_mask` of a model in memory and computes
`weight` from them in a hook before every forward. A masked layer takes over the Parameter
`weight_orig` and the mask, so optimizers that hold the Parameter go on working.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod

from gossamer.errors import InputError
from gossamer.io.pruners.plain_checkpoint import (
    MASK,
    ORIGINAL,
    Tensors,
    as_mask,
    fold_pruned,
    read_tensors_of,
)
from gossamer.io.safe_files.directories import AnyPath
from gossamer.nn.forms import can_mask, is_ordinary, to_masked
from gossamer.nn.layer_weights import holders_of
from gossamer.nn.surgery import disable_fast_paths, replace_module
from gossamer.patterns import Pattern, detect_pattern

_FOLDED = ("weight", "bias")


@dataclass(frozen=True)
class _Found:
    """One pruned layer, and the mask of its weight."""

    name: str
    layer: nn.Module
    mask: torch.Tensor
    pattern: Pattern


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
    adopted = []
    for weight, places in holders_of(model).items():
        plain = all(
            layer is not model and is_ordinary(layer) and layer._parameters.get("weight") is weight
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


def adopt_pruned(model: nn.Module) -> list[AdoptedLayer]:
    """Turn layers pruned by torch.nn.utils.prune into masked ones, in place.

    Mask and output stay as they are; the pattern is detected. A pruned bias becomes an ordinary
    one that holds its zeros. Everything is checked first: on an error nothing was changed.

    Args:
        model: any module; layers that are not pruned are left alone.

    Returns:
        The layers that became masked.

    Raises:
        InputError: a pruned layer is no Linear or Conv2d, has more than weight and bias pruned, is
            parametrized (weight_norm and the like), or shares its weight with another one.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected a torch.nn.Module, got {type(model).__name__}.")
    found = [
        _inspect(name, layer, model)
        for name, layer in model.named_modules()
        if _pruning_hooks(layer)
    ]
    for item in found:
        _restore(item.layer)
        replace_module(model, item.layer, to_masked(item.layer, item.mask, item.pattern))
    disable_fast_paths(model)
    return [
        AdoptedLayer(item.name, item.pattern, 1 - float(item.mask.double().mean()))
        for item in found
    ]


def _pruning_hooks(layer: nn.Module) -> dict[str, int]:
    """The pruned tensors of a layer and the keys of their hooks."""
    return {
        str(hook._tensor_name): key
        for key, hook in layer._forward_pre_hooks.items()
        if isinstance(hook, BasePruningMethod)
    }


def _inspect(name: str, layer: nn.Module, model: nn.Module) -> _Found:
    place = f"{name or 'the model'} ({type(layer).__name__})"
    hooks = _pruning_hooks(layer)
    original = layer._parameters.get("weight" + ORIGINAL)
    stored = layer._buffers.get("weight" + MASK)
    if layer is model:
        raise InputError(
            f"{place}: is the model itself and cannot be replaced in place. Wrap it:"
            " model = torch.nn.Sequential(model)."
        )
    if not can_mask(layer) or is_parametrized(layer) or "forward" in layer.__dict__:
        raise InputError(
            f"{place}: is pruned by torch.nn.utils.prune, but only an ordinary Linear or Conv2d"
            f" can be masked. Make it permanent: prune.remove(layer, {next(iter(hooks))!r})."
        )
    others = sorted(set(hooks) - set(_FOLDED))
    # A hook such as weight_norm's leaves a Parameter of another name, such as weight_g, and no
    # `weight` among them.
    computed = set(layer._parameters) - {"weight" + ORIGINAL, "bias", "bias" + ORIGINAL}
    if others or original is None or stored is None or computed:
        what = f"its {others[0]} is pruned" if others else "its weight is not only pruned"
        raise InputError(
            f"{place}: {what}, or computed by weight_norm or the like, which a masked layer cannot"
            " hold. Make it permanent with torch.nn.utils.prune.remove and remove_weight_norm."
        )
    for other_name, other in model.named_modules():
        if other is not layer and any(p is original for p in other._parameters.values()):
            raise InputError(
                f"{place}: shares its weight with {other_name or 'the model'}, which would see the"
                " zeros of its mask. Untie the two first."
            )
    mask = as_mask(stored, f"{place}: weight_mask").reshape(original.shape[0], -1)
    return _Found(name, layer, mask, detect_pattern(mask))


def _restore(layer: nn.Module) -> None:
    """Give the layer its ordinary Parameters back and take the hooks away."""
    for tensor, key in _pruning_hooks(layer).items():
        del layer._forward_pre_hooks[key]
        original = layer._parameters.pop(tensor + ORIGINAL)
        mask = layer._buffers.pop(tensor + MASK)
        # The product of the last forward is an ordinary attribute.
        layer.__dict__.pop(tensor, None)
        if tensor == "bias" and original is not None and mask is not None:
            original.data.mul_(mask)
        layer._parameters[tensor] = original
    # Back in the order of an ordinary layer, which optimizers number Parameters by.
    ordered = {tensor: layer._parameters[tensor] for tensor in _FOLDED}
    layer._parameters.clear()
    layer._parameters.update(ordered)
