# SPDX-License-Identifier: Apache-2.0
"""Early-Bird tickets (arXiv 1909.11957): train dense until the mask settles, then prune.

The unstructured form compares masks by |w|, as SAMO needs it for transformers; the published one
compares channels by BatchNorm's |gamma| under an L1 penalty. Moments of kept weights stay as they
are.

Two masks are compared by the fraction of all weights in which they differ (Hamming, as published
for channels) or by the fraction of kept weights that changed (overlap). At high sparsity the first
one hardly sees anything: masks drawn at random at 95 % differ by 0.095, below the published 0.1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.errors import InputError, TargetError
from gossamer.formats.bits import count_bits, pack_bits
from gossamer.nn.layer_kinds import kind_of
from gossamer.nn.surgery.channels import read_channels
from gossamer.patterns import Unstructured
from gossamer.patterns.selection import keep_largest, kept_count
from gossamer.pruning.schedules.base import Events, State, WindowedSchedule, checked_scores
from gossamer.pruning.schedules.layers import ControlledLayer
from gossamer.pruning.schedules.radix_select import keep_largest_across
from gossamer.pruning.structured.channels import ChannelGroups

Distance = Literal["overlap", "hamming"]


def mask_distance(a: torch.Tensor, b: torch.Tensor, num_entries: int, kind: Distance) -> float:
    """Distance in [0, 1] of two packed masks, uint8 of the same size.

    Args:
        a: the newer mask.
        b: the older one.
        num_entries: weights they stand for.
        kind: "hamming": differing / all; "overlap": 1 - common / max(kept of each).
    """
    if a.shape != b.shape:
        raise InputError(f"mask_distance: sizes differ, {list(a.shape)} and {list(b.shape)}.")
    if kind == "hamming":
        return count_bits(a ^ b) / num_entries if num_entries else 0.0
    kept = max(count_bits(a), count_bits(b))
    return 1.0 - count_bits(a & b) / kept if kept else 0.0


def packed(masks: Sequence[torch.Tensor]) -> torch.Tensor:
    """One uint8 vector of many bool masks."""
    return torch.cat([pack_bits(mask.reshape(1, -1)).flatten() for mask in masks])


@dataclass
class MaskHistory:
    """The last few masks, and whether the newest agrees with all others.

    Attributes:
        size: masks held.
        threshold: largest distance allowed.
        kind: of distance.
    """

    size: int
    threshold: float
    kind: Distance
    _held: list[torch.Tensor] = field(default_factory=list)

    def add(self, masks: Sequence[torch.Tensor]) -> float:
        """Take a new mask; its largest distance to the others, 1 while there are too few."""
        *others, newest = self._held = [*self._held, packed(masks)][-self.size :]
        if len(self._held) < self.size:
            return 1.0
        num_entries = sum(mask.numel() for mask in masks)
        return max(mask_distance(newest, other, num_entries, self.kind) for other in others)

    def agrees(self, distance: float) -> bool:
        """Whether the history is full and `distance`, given by `add`, small enough."""
        return len(self._held) == self.size and distance <= self.threshold

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Oldest first."""
        return {str(number): held.clone() for number, held in enumerate(self._held)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """As `state_dict` gave it."""
        self._held = [state[str(number)].clone() for number in range(len(state))]


@dataclass(eq=False, kw_only=True)
class EarlyBird(WindowedSchedule):
    """Looks at the mask it would draw, at the steps of a window; draws it at the end at the latest.

    Attributes:
        distance: "overlap" or "hamming".
        threshold: largest distance of the newest mask to the others held.
        history: masks held.
    """

    distance: Distance
    threshold: float
    history: int
    kind = "early_bird"
    _drawn_at: int = field(init=False, default=-1)

    def __post_init__(self) -> None:
        self._history = MaskHistory(self.history, self.threshold, self.distance)

    def start(self) -> Events:
        """Nothing yet: the first look comes after the first steps."""
        return []

    def update(self, step: int) -> Events:
        """Look, and draw if the masks agree."""
        if not self.window.holds(step):
            return []
        masks = self._wanted()
        distance = self._history.add(masks)
        agreed = self._history.agrees(distance)
        events = [self.run.event(step, "distance", distance=distance)]
        if agreed or step >= self.window.end:
            self._draw(masks)
            self._drawn_at = step
            events.append(self.run.event(step, "ticket", distance=distance, agreed=agreed))
        return events

    def is_settled(self, step: int) -> bool:
        """Once the ticket is drawn."""
        return self._drawn_at >= 0

    def state_dict(self) -> State:
        """The masks held, and when the ticket was drawn."""
        return {"history": self._history.state_dict(), "drawn_at": self._drawn_at}

    def load_state_dict(self, state: State, step: int) -> None:
        """As `state_dict` gave it."""
        self._history.load_state_dict(state["history"])
        self._drawn_at = int(state["drawn_at"])

    def _wanted(self) -> list[torch.Tensor]:
        return self.best_masks(self.magnitudes(), self.density, self.run.pattern)

    def _draw(self, masks: list[torch.Tensor]) -> None:
        self.run.change(masks, self.run.pattern)


class NormedChannels(NamedTuple):
    """The output channels of one layer and the BatchNorm behind it, whose |gamma| ranks them.

    A channel that is cut loses the row of the layer and its gamma and beta; it then gives exactly
    0, in training and after, whatever the running statistics are.
    """

    layer: ControlledLayer
    norm_name: str
    norm: _BatchNorm


@dataclass(eq=False, kw_only=True)
class EarlyBirdChannels(EarlyBird):
    """The structured form: whole channels by |gamma|.

    Budget global is the published one: one threshold for all gammas. Exactly
    round(density * channels) are kept, and a tenth of each layer at least, as one without any would
    give a constant. Early in a run gammas are all near 1, and small differences between whole
    layers decide; budget uniform then keeps the same part of each layer. The lower channel wins a
    tie. A cut channel's gamma and beta are held at 0 for the rest of the run.

    Channels that are added to each other, by a shortcut, can be cut out only if all of them go.
    With `coupled` they are ranked by the mean of their gammas and go together (`ChannelGroups`).

    Attributes:
        l1: factor of the sum of all |gamma| in the loss while the schedule looks.
        coupled: whether channels that are added to each other go together.
        example: an input of the model, to see which ones those are.
    """

    l1: float
    coupled: bool = False
    example: torch.Tensor | None = None
    _groups: ChannelGroups | None = field(init=False, default=None)
    _channels: list[NormedChannels] = field(init=False, default_factory=list)
    _kept: list[torch.Tensor] = field(init=False, default_factory=list)

    def start(self) -> Events:
        """Find each BatchNorm with the layer registered right before it, of the same width."""
        by_name = {layer.name: layer for layer in self.run.layers}
        before = None
        for name, module in self.run.model.named_modules():
            if isinstance(module, _BatchNorm) and module.affine:
                if before is not None and before.mask.shape[0] == module.num_features:
                    self._channels.append(NormedChannels(before, name, module))
                before = None
            elif kind_of(module, has_masks=True):
                before = by_name.get(name)
        if not self._channels:
            raise TargetError(
                "early_bird with form 'channels' looks at the gammas of BatchNorm, but no target"
                " layer is followed by one of its width. Use form 'weights'."
            )
        if self.coupled:
            self._groups = self._coupled_groups()
        return []

    def _coupled_groups(self) -> ChannelGroups:
        if self.example is None or self.run.shards is not None:
            raise InputError(
                "early_bird with coupled channels looks at how the whole model is connected: give"
                " data=[x], an input of the model, and no shards."
            )
        found = read_channels(self.run.model, self.example)
        return ChannelGroups(found, [part.norm_name for part in self._channels])

    def loss_term(self) -> torch.Tensor | None:
        """L1 on all gammas while searching."""
        if not self.l1:
            return None
        return self.l1 * sum(part.norm.weight.abs().sum() for part in self._channels)  # type: ignore[return-value]

    def state_dict(self) -> State:
        """Also which channels were kept."""
        names = [part.norm_name for part in self._channels]
        kept = {name: mask.to(torch.uint8) for name, mask in zip(names, self._kept, strict=False)}
        return {**super().state_dict(), "kept": kept}

    def load_state_dict(self, state: State, step: int) -> None:
        """As `state_dict` gave it."""
        super().load_state_dict(state, step)
        held = state["kept"]
        if held:
            self._keep([held[part.norm_name].bool() for part in self._channels])

    def _wanted(self) -> list[torch.Tensor]:
        sizes = [
            checked_scores(part.norm_name, part.norm.weight.detach().abs()).float()
            for part in self._channels
        ]
        if self._groups is not None:
            budget: Any = self.budget
            masks = self._groups.kept(sizes, self.density, budget)
            return [mask.to(size.device) for mask, size in zip(masks, sizes, strict=True)]
        if self.budget == "uniform":
            # One at least: a layer without any would give a constant.
            return [
                keep_largest(size, max(1, kept_count(self.density, len(size)))) for size in sizes
            ]
        # The best tenth of a layer's channels, one at least, ranks above all others.
        scores = [
            size.masked_fill(keep_largest(size, math.ceil(len(size) / 10)), math.inf)
            for size in sizes
        ]
        return keep_largest_across(scores, self.density, self.run.shards)

    def _draw(self, masks: list[torch.Tensor]) -> None:
        run = self.run
        rows = {layer.name: torch.ones_like(layer.mask) for layer in run.layers}
        for part, kept in zip(self._channels, masks, strict=True):
            rows[part.layer.name] = kept[:, None].expand_as(part.layer.mask).contiguous()
        run.change(list(rows.values()), Unstructured())
        self._keep(masks)

    def _keep(self, masks: list[torch.Tensor]) -> None:
        """Zero gamma and beta of the channels that are cut, now and in every later gradient."""
        self._kept = masks
        for part, kept in zip(self._channels, masks, strict=True):
            for parameter in (part.norm.weight, part.norm.bias):
                parameter.data.masked_fill_(~kept, 0.0)
                self.run.entries.reset(parameter, ~kept)
                # With zero slots and zero gradient every optimizer leaves them at 0.
                parameter.register_hook(partial(_within, kept))  # type: ignore[no-untyped-call]


def _within(kept: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return torch.where(kept, gradient, 0.0)
