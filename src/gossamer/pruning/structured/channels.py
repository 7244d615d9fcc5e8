# SPDX-License-Identifier: Apache-2.0
"""Whole channels of convolutional networks: which ones go together, which ones stay.

`ChannelGroups` chooses among channels that can really be cut; `prune_channels` does it at once and
makes the network smaller. Early-Bird chooses in the middle of a run, by the same groups.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.layer_weights import weight_of
from gossamer.nn.surgery import unchanged_on_error
from gossamer.nn.surgery.channels import ChannelCut, ChannelMap, cut_dead_channels, read_channels
from gossamer.patterns.selection import kept_count

__all__ = ["ChannelGroups", "prune_channels"]

ChannelBudget = Literal["global", "uniform"]
ChannelScorer = Literal["gamma", "magnitude"]


class ChannelGroups:
    """Channels of several layers that stand or fall together.

    A group's score is the mean of its members'. Groups with members in the same layers are of one
    sort: of each sort a tenth stays at least, one group always. Channels that something reads which
    is not understood are not in any group, and stay.

    Args:
        found: of the network.
        names: of the layers whose channels are scored.
    """

    def __init__(self, found: ChannelMap, names: Sequence[str]) -> None:
        fixed = found.cells.fixed()
        cells = [found.layers[name].outputs if name in found.layers else [] for name in names]
        by_layer = [found.cells.groups(of) for of in cells]
        numbers: dict[int, int] = {}
        for groups in by_layer:
            for group in groups:
                if group not in fixed:
                    numbers.setdefault(group, len(numbers))
        # -1: stays.
        self._places = [torch.tensor([numbers.get(g, -1) for g in of]) for of in by_layer]
        sorts: list[set[int]] = [set() for _ in numbers]
        for layer, places in enumerate(self._places):
            for number in places[places >= 0].tolist():
                sorts[number].add(layer)
        self._sorts: dict[frozenset[int], list[int]] = {}
        for number, sort in enumerate(sorts):
            self._sorts.setdefault(frozenset(sort), []).append(number)
        self._count = len(numbers)

    def __len__(self) -> int:
        return self._count

    def kept(
        self, scores: Sequence[torch.Tensor], density: float, budget: ChannelBudget
    ) -> list[torch.Tensor]:
        """Bool [channels] of every layer: the channels of the highest scores.

        Args:
            scores: of the channels of every layer.
            density: part of the channels that stays.
            budget: "global": one threshold, and the number of channels nearest to the density;
                "uniform": the same part of each sort of groups.
        """
        score, size = torch.zeros(self._count), torch.zeros(self._count)
        for places, of in zip(self._places, scores, strict=True):
            if not len(places):
                continue  # nobody knows where its channels go
            free = places >= 0
            score.index_add_(0, places[free], of.float().cpu()[free])
            size.index_add_(0, places[free], torch.ones(int(free.sum())))
        stays = torch.zeros(self._count, dtype=torch.bool)
        mean = score / size.clamp(min=1)
        for numbers in self._sorts.values():
            tenth = math.ceil(len(numbers) / 10)
            count = kept_count(density, len(numbers)) if budget == "uniform" else tenth
            least = max(1, count)
            order = mean[numbers].argsort(descending=True, stable=True)
            stays[torch.tensor(numbers)[order[:least]]] = True
        if budget == "global" and self._count:
            order = (mean + torch.where(stays, math.inf, 0.0)).argsort(descending=True, stable=True)
            over = (size[order].cumsum(0) - density * size.sum()).abs()
            stays[order[: int(over.argmin()) + 1]] = True
        fixed = torch.ones(1, dtype=torch.bool)
        both = torch.cat((stays, fixed))
        return [
            both[places] if len(places) else torch.ones(len(of), dtype=torch.bool)
            for places, of in zip(self._places, scores, strict=True)
        ]


def prune_channels(
    model: nn.Module,
    example: torch.Tensor,
    *,
    keep: float,
    budget: ChannelBudget = "uniform",
    scorer: ChannelScorer = "gamma",
) -> ChannelCut:
    """Cut whole channels out of a convolutional network, in place: it gets smaller for good.

    Args:
        model: its forward takes one tensor.
        example: such a tensor.
        keep: part of the channels that stays, in (0, 1].
        budget: how it is shared among layers, see `ChannelGroups`.
        scorer: "gamma": |gamma| of BatchNorm; "magnitude": the 2-norm of a filter.

    Raises:
        TargetError: there is nothing to score, or nothing that can be cut.
    """
    found = read_channels(model, example)
    role = "norm" if scorer == "gamma" else "product"
    scores = _scores(model, found, role)
    groups = ChannelGroups(found, list(scores))
    if not len(groups):
        raise TargetError(
            f"channels: nothing of this {type(model).__name__} can be cut by {scorer}: it has no"
            f" {'BatchNorm' if role == 'norm' else 'layer'} between two layers that are understood."
        )
    kept = groups.kept(list(scores.values()), keep, budget)
    dead = {
        group
        for name, mask in zip(scores, kept, strict=True)
        for group, stays in zip(
            found.cells.groups(found.layers[name].outputs), mask.tolist(), strict=True
        )
        if not stays
    }
    with unchanged_on_error(model):
        _clear(model, found, dead)
        return cut_dead_channels(model, example)


def _scores(model: nn.Module, found: ChannelMap, role: str) -> Mapping[str, torch.Tensor]:
    scores = {}
    for name, layer in found.layers.items():
        module = model.get_submodule(name)
        if layer.role != role or (role == "norm" and module._parameters.get("weight") is None):
            continue
        weight = weight_of(module) if role == "product" else module.get_parameter("weight").detach()
        scores[name] = weight.abs() if weight.ndim == 1 else weight.flatten(1).norm(dim=1)
    return scores


@torch.no_grad()
def _clear(model: nn.Module, found: ChannelMap, dead: set[int]) -> None:
    """Zero everything that makes the channels of these groups."""
    for name, layer in found.layers.items():
        if layer.role == "shortcut":
            continue
        gone = torch.tensor([group in dead for group in found.cells.groups(layer.outputs)])
        for parameter in model.get_submodule(name)._parameters.values():
            if parameter is not None and len(parameter) == len(gone):
                parameter[gone] = 0.0
