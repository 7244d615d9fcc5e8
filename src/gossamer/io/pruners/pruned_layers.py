# SPDX-License-Identifier: Apache-2.0
"""Models pruned in memory by torch.nn.utils.prune as models with masked layers.

That module keeps `weight_orig` and `weight_mask` and computes `weight` from them in a hook before
every forward. The masked layer takes over the Parameter `weight_orig` and the mask, so optimizers
that hold the Parameter go on working.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod

from gossamer.errors import InputError
from gossamer.io.pruners.dense_checkpoint import AdoptedLayer
from gossamer.io.pruners.plain_checkpoint import MASK, ORIGINAL, as_mask
from gossamer.nn.forms import can_mask, to_masked
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
