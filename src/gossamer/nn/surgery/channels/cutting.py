# SPDX-License-Identifier: Apache-2.0
"""`cut_dead_channels`: what nothing needs is taken out of every layer, in place.

Masks that are all kept afterwards go, and their layers are ordinary ones. Other masks stay, cut
like their weights. A convolution in groups needs as many channels in each: what is dead beyond that
stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from gossamer.nn.surgery.channels.reading import ChannelMap, LayerCells, read_channels
from gossamer.nn.surgery.channels.record import note_cut
from gossamer.nn.surgery.channels.resizing import Kept, LayerSizes, resize
from gossamer.nn.surgery.full_masks import drop_full_masks
from gossamer.nn.surgery.unchanged import unchanged_on_error


@dataclass
class ChannelCut:
    """What was cut.

    Attributes:
        parameters: numbers of the model before and after.
        layers: sizes before and after, by the name of each layer that was cut.
        left: dead channels that stay, and why.
        unknown: operations whose channels are never cut.
    """

    parameters: tuple[int, int]
    layers: dict[str, tuple[LayerSizes, LayerSizes]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        before, after = self.parameters
        lines = [
            f"{len(self.layers)} layers lost channels: {before:,} parameters became {after:,}.",
            *self.left,
        ]
        if self.unknown:
            shown = ", ".join(self.unknown[:4])
            lines.append(f"Channels that these operations read are never cut: {shown}.")
        return "\n".join(lines)


def cut_dead_channels(
    model: nn.Module, example: torch.Tensor, optimizer: torch.optim.Optimizer | None = None
) -> ChannelCut:
    """Take out all channels that make no difference to what `model` computes.

    Args:
        model: changed in place; an error leaves it as it was. Its forward takes one tensor.
        example: such a tensor; what is in it does not matter.
        optimizer: holds the parameters; it then holds the smaller ones, with their state.

    Raises:
        TargetError: the forward cannot be traced, or a layer that would be cut is compact.
    """
    found = read_channels(model, example)
    result = ChannelCut((_size(model), 0))
    with unchanged_on_error(model, optimizer, contents=()):
        # What was read by a row that is gone is read by nothing: once more, until nothing is left.
        for _ in model.modules():
            left: list[str] = []
            kept = kept_channels(found, left)
            if not kept:
                break
            for name, of in kept.items():
                sizes = resize(model, name, of, optimizer)
                first = result.layers[name][0] if name in result.layers else sizes[0]
                result.layers[name] = (first, sizes[1])
            found = read_channels(model, example)
        result.left, result.unknown = left, found.unknown
        drop_full_masks(model, optimizer)
        note_cut(model, {name: sizes[1] for name, sizes in result.layers.items()})
    result.parameters = (result.parameters[0], _size(model))
    return result


def kept_channels(found: ChannelMap, left: list[str]) -> dict[str, Kept]:
    """What stays of each layer that loses something; `left` gets what cannot be cut, and why."""
    dead = found.dead()
    for name, layer in found.layers.items():
        groups = found.cells.groups(layer.outputs)
        if layer.outputs and layer.role == "product" and dead.issuperset(groups):
            # A layer without channels is one that torch and engines do not know.
            dead.discard(groups[0])
            left.append(f"{name}: its first channel stays although nothing needs it.")
    _make_even(found, dead, left)
    kept = {}
    for name, layer in found.layers.items():
        inputs, outputs = (_places(found, side, dead) for side in (layer.inputs, layer.outputs))
        if len(inputs) < len(layer.inputs) or len(outputs) < len(layer.outputs):
            sizes = len(layer.inputs), len(layer.outputs)
            kept[name] = Kept(layer.role, tuple(inputs), tuple(outputs), *sizes)
    return kept


def _places(found: ChannelMap, cells: Sequence[int], dead: set[int]) -> list[int]:
    groups = found.cells.groups(cells)
    return [place for place, group in enumerate(groups) if group not in dead]


def _make_even(found: ChannelMap, dead: set[int], left: list[str]) -> None:
    """Let each group of a convolution keep as many channels as the fullest one."""
    grouped = {
        name: layer
        for name, layer in found.layers.items()
        if layer.role == "product" and layer.groups > 1 and not _is_depthwise(found, layer)
    }
    stays: dict[str, int] = {}
    changed = True
    while changed and dead:
        changed = False
        for name, layer in grouped.items():
            for cells in (layer.inputs, layer.outputs):
                for cell in _missing(found, cells, layer.groups, dead):
                    dead.discard(cell)
                    stays[name] = stays.get(name, 0) + 1
                    changed = True
    left += [
        f"{name}: {count} dead channels stay, because its {grouped[name].groups} groups must be"
        " equal."
        for name, count in stays.items()
    ]


def _missing(found: ChannelMap, cells: Sequence[int], groups: int, dead: set[int]) -> list[int]:
    """Dead groups of cells to keep, so that all groups of a convolution have the same number."""
    each = len(cells) // groups
    parts = [found.cells.groups(cells[i * each : (i + 1) * each]) for i in range(groups)]
    most = max(sum(cell not in dead for cell in part) for part in parts)
    wanted = []
    for part in parts:
        gone = [cell for cell in part if cell in dead]
        wanted += gone[: most - (each - len(gone))]
    return wanted


def _is_depthwise(found: ChannelMap, layer: LayerCells) -> bool:
    pairs = zip(layer.inputs, layer.outputs, strict=False)
    same = all(found.cells.group(one) == found.cells.group(other) for one, other in pairs)
    return same and layer.groups == len(layer.inputs) == len(layer.outputs)


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
