# SPDX-License-Identifier: Apache-2.0
"""Early-Bird for transformers: whole heads and filters, ranked by the weights that they own.

A unit's score is the root mean square of its rows in the layers before it and of its columns in the
layer behind it. A unit that is cut loses all of them, so that it can be taken out of the model.
"""

from dataclasses import dataclass, field

import torch

from gossamer.errors import TargetError
from gossamer.nn.surgery.slimming import UnitGroup, find_groups
from gossamer.patterns import Unstructured
from gossamer.patterns.selection import keep_largest, kept_count
from gossamer.pruning.schedules.base import Events, checked_scores
from gossamer.pruning.schedules.early.early_bird import EarlyBird


@dataclass(eq=False, kw_only=True)
class EarlyBirdUnits(EarlyBird):
    """The form for transformers: heads, and filters of feed-forward parts.

    Budget uniform keeps the same part of every block's heads and of its filters; budget global has
    one threshold for all heads and one for all filters. One of each stays in every block.
    """

    _units: list[UnitGroup] = field(init=False, default_factory=list)

    def start(self) -> Events:
        """Find the blocks, and check that masks may move in all of their layers."""
        self._units = [group for group in find_groups(self.run.model) if group.count]
        if not self._units:
            raise TargetError(
                "early_bird with form 'units' looks for heads and filters of transformers, and the"
                f" {type(self.run.model).__name__} has no blocks of a known family. Use form"
                " 'weights'."
            )
        known = {layer.name for layer in self.run.layers}
        for group in self._units:
            for part in (*group.producer_names, group.consumer_name):
                if f"{group.block_name}.{part}" not in known:
                    raise TargetError(
                        f"{group.block_name}.{part}: early_bird with form 'units' moves its mask,"
                        " but it is no target. Take it out of ignore."
                    )
        return []

    def _wanted(self) -> list[torch.Tensor]:
        scores = [checked_scores(group.name, self._score(group)) for group in self._units]
        kept = [keep_largest(score, 1) for score in scores]
        if self.budget == "uniform":
            counts = [max(1, kept_count(self.density, len(score))) for score in scores]
            return [keep_largest(score, n) for score, n in zip(scores, counts, strict=True)]
        for kind in ("heads", "filters"):
            numbers = [i for i, group in enumerate(self._units) if group.kind == kind]
            # The best of every block ranks above all others.
            ranked = [scores[i].masked_fill(kept[i], torch.inf) for i in numbers]
            together = torch.cat(ranked)
            count = max(len(numbers), kept_count(self.density, len(together)))
            chosen, begin = keep_largest(together, count), 0
            for i in numbers:
                kept[i] = chosen[begin : begin + len(scores[i])]
                begin += len(scores[i])
        return kept

    def _score(self, group: UnitGroup) -> torch.Tensor:
        units = torch.arange(group.count)
        by_name = {layer.name: layer for layer in self.run.layers}
        total, size = torch.zeros(group.count), 0
        for name in group.producer_names:
            matrix = by_name[f"{group.block_name}.{name}"].matrix
            rows = matrix[group.rows(group.block.get_submodule(name), units)]
            # Segment after segment, unit after unit.
            squares = rows.float().square().view(group.segments, group.count, -1).sum((0, 2))
            total, size = total + squares.cpu(), size + rows.numel() // group.count
        columns = by_name[f"{group.block_name}.{group.consumer_name}"].matrix.float().square()
        total += columns.view(len(columns), group.count, -1).sum((0, 2)).cpu()
        return (total / (size + columns.numel() // group.count)).sqrt()

    def _draw(self, masks: list[torch.Tensor]) -> None:
        found = self._masks(masks)
        layers = self.run.layers
        kept = [found.get(layer.name, torch.ones_like(layer.mask)) for layer in layers]
        self.run.change(kept, Unstructured())

    def _masks(self, kept: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The mask of every layer that owns rows or columns of units, by name."""
        by_name = {layer.name: layer for layer in self.run.layers}
        found = {}
        for group, units in zip(self._units, kept, strict=True):
            for part in (*group.producer_names, group.consumer_name):
                name = f"{group.block_name}.{part}"
                mask = torch.ones_like(by_name[name].mask)
                gone = (~units).nonzero().flatten()
                if part == group.consumer_name:
                    mask[:, group.columns(gone)] = False
                else:
                    mask[group.rows(group.block.get_submodule(part), gone)] = False
                found[name] = mask
        return found
