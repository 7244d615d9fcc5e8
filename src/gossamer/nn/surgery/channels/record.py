# SPDX-License-Identifier: Apache-2.0
"""What was cut out of a model, as data: written on the model, read for files, given back.

A file holds sizes only. Which channels were cut is in no file: the weights that are left are.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.errors import TargetError
from gossamer.nn.layer_kinds import kind_name
from gossamer.nn.layer_weights import shape_of
from gossamer.nn.layers.shortcut import padding_of
from gossamer.nn.surgery.channels.resizing import Kept, LayerSizes, resize
from gossamer.nn.surgery.full_masks import drop_full_masks

CutSizes = dict[str, LayerSizes]
_NOTE = "_gossamer_cut"


def note_cut(model: nn.Module, sizes: Mapping[str, LayerSizes]) -> None:
    """Write on a model that these layers have other sizes than its class gives them."""
    if sizes:
        model.__dict__[_NOTE] = {**model.__dict__.get(_NOTE, {}), **sizes}


def cut_sizes(model: nn.Module) -> CutSizes:
    """The layers of `model` that lost channels, by name, with the sizes they have now."""
    found: CutSizes = {}
    for path, module in model.named_modules():
        parts = dict(module.named_modules())
        for name, sizes in module.__dict__.get(_NOTE, {}).items():
            # A norm that was folded into its convolution has none.
            if name in parts and _sizes_of(parts[name], sizes) == sizes:
                found[f"{path}.{name}" if path else name] = sizes
    return found


def restore_cut(
    model: nn.Module, sizes: CutSizes, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Give layers of a model of full size the sizes that a file names, in place.

    Which channels stay does not matter: the weights follow. Layers that have their size already are
    left alone.

    Raises:
        TargetError: there is no such layer, or it is smaller than that.
    """
    modules = dict(model.named_modules())
    for name, wanted in sizes.items():
        module = modules.get(name)
        role, now = _role(module), _sizes_of(module, wanted)
        if now is None:
            kind = "nothing" if module is None else f"a {type(module).__name__}"
            raise TargetError(
                f"{name}: {wanted.outputs} channels are asked for, but there is {kind} that could"
                " have them."
            )
        if now == wanted:
            continue
        kept = _first(role, now, wanted, getattr(module, "groups", 1))
        if kept is None:
            raise TargetError(
                f"{name}: has {now.outputs} channels and reads {now.inputs}; {wanted.outputs} and"
                f" {wanted.inputs} are asked for. Give the model of full size."
            )
        resize(model, name, kept, optimizer)
    drop_full_masks(model, optimizer)
    note_cut(model, sizes)


def _role(module: nn.Module | None) -> Any:
    if module is None:
        return None
    if kind_name(module) in ("linear", "conv") or type(module) is nn.Conv1d:
        return "product"
    if isinstance(module, _BatchNorm):
        return "norm"
    return "shortcut" if padding_of(module) is not None else None


def _sizes_of(module: Any, wanted: LayerSizes) -> LayerSizes | None:
    """Sizes of a layer, None of other modules; a shortcut takes as many channels as are needed."""
    if _role(module) is None:
        return None
    if isinstance(module, _BatchNorm):
        return LayerSizes(module.num_features)
    padding = padding_of(module)
    if padding is not None:
        inputs = wanted.inputs
        return LayerSizes(padding.before + inputs + padding.after, inputs, padding.before)
    shape = shape_of(module)
    return LayerSizes(shape[0], shape[1] * getattr(module, "groups", 1))


def _first(role: Any, now: LayerSizes, wanted: LayerSizes, groups: int) -> Kept | None:
    """The first channels of a layer, of each group as many; None if it does not have them."""
    after = [size.outputs - size.before - size.inputs for size in (now, wanted)]
    sides = [
        (now.outputs, wanted.outputs),
        (now.inputs, wanted.inputs),
        (now.before, wanted.before),
    ]
    if any(not 0 <= new <= old for old, new in [*sides, *([after] if role == "shortcut" else [])]):
        return None
    if role == "shortcut":
        behind = now.before + now.inputs
        outputs = [
            *range(wanted.before),
            *range(now.before, behind),
            *range(behind, behind + after[1]),
        ]
        inputs: list[int] = list(range(wanted.inputs))
    else:
        # Depthwise ones lose groups, all others lose channels in each.
        parts = 1 if groups == now.inputs == now.outputs else groups
        inputs, outputs = (_of_each(*side, parts) for side in (sides[1], sides[0]))
    return Kept(role, tuple(inputs), tuple(outputs), now.inputs, now.outputs)


def _of_each(old: int, new: int, parts: int) -> list[int]:
    each, stays = old // parts, new // parts
    return [part * each + place for part in range(parts) for place in range(stays)]
