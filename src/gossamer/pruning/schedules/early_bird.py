# SPDX-License-Identifier: Apache-2.0
"""Early-Bird tickets (arXiv 1909.11957): train dense until the mask settles, prune once, go on.

The unstructured form compares masks by |w|, as SAMO needs it for transformers; the published one
compares channels by BatchNorm's |gamma| under an L1 penalty. Moments of kept weights go on as they
are.
"""

import math

import torch

from gossamer.patterns import Unstructured, kept_count
from gossamer.patterns.select import keep_largest
from gossamer.pruning.schedules.allocation import best_masks, checked_scores, magnitudes
from gossamer.pruning.schedules.base import Event, Schedule, State
from gossamer.pruning.schedules.channels import Channels, find_channels
from gossamer.pruning.schedules.mask_distance import Distance, MaskHistory
from gossamer.pruning.schedules.moments import Window
from gossamer.pruning.schedules.radix_select import keep_largest_across


class EarlyBird(Schedule):
    """Looks at the mask it would draw, at the steps of a window; draws it at the end at the latest.

    Args:
        density: of the ticket.
        budget: how it is shared among layers.
        window: when it looks.
        distance: "overlap" or "hamming".
        threshold: largest distance of the newest mask to the others held.
        history: masks held.
    """

    kind = "early_bird"

    def __init__(
        self,
        *,
        density: float,
        budget: str,
        window: Window,
        distance: Distance,
        threshold: float,
        history: int,
    ) -> None:
        self._density, self._budget, self._window = density, budget, window
        self._history = MaskHistory(history, threshold, distance)
        self._drawn_at: int | None = None

    def start(self) -> list[Event]:
        """Nothing yet: the first look comes after the first steps."""
        return []

    def update(self, step: int) -> list[Event]:
        """Look, and draw if the masks agree."""
        if not self._window.holds(step):
            return []
        masks = self._wanted()
        distance = self._history.add(masks)
        agreed, last = self._history.agrees(distance), step >= self._window.end
        events = [self.run.event(step, "distance", distance=distance)]
        if agreed or last:
            self._draw(masks)
            self._drawn_at = step
            events.append(self.run.event(step, "ticket", distance=distance, agreed=agreed))
        return events

    def is_settled(self, step: int) -> bool:
        """Once the ticket is drawn."""
        return self._drawn_at is not None

    def state_dict(self) -> State:
        """The masks held, and when the ticket was drawn."""
        drawn = -1 if self._drawn_at is None else self._drawn_at
        return {"history": self._history.state_dict(), "drawn_at": drawn}

    def load_state_dict(self, state: State, step: int) -> None:
        """As `state_dict` gave it."""
        self._history.load_state_dict(state["history"])
        self._drawn_at = None if state["drawn_at"] < 0 else int(state["drawn_at"])

    def _wanted(self) -> list[torch.Tensor]:
        run = self.run
        return best_masks(run, self._budget, self._density, magnitudes(run.layers))

    def _draw(self, masks: list[torch.Tensor]) -> None:
        self.run.change(masks, self.run.pattern)


class EarlyBirdChannels(EarlyBird):
    """The structured form: whole channels by |gamma|.

    Budget global is the published one: one threshold for all gammas. Exactly
    round(density * channels) are kept, and a tenth of each layer at least, as one without any would
    give a constant. Early in a run gammas are all near 1, and small differences between whole
    layers decide; budget uniform then keeps the same part of each layer. The lower channel wins a
    tie. A cut channel's gamma and beta are held at 0 for the rest of the run.
    """

    _channels: list[Channels]
    _kept: list[torch.Tensor] | None = None

    def __init__(
        self,
        *,
        density: float,
        budget: str,
        window: Window,
        distance: Distance,
        threshold: float,
        history: int,
        l1: float,
    ) -> None:
        super().__init__(
            density=density,
            budget=budget,
            window=window,
            distance=distance,
            threshold=threshold,
            history=history,
        )
        self._l1 = l1

    def start(self) -> list[Event]:
        """Find the BatchNorms."""
        self._channels = find_channels(self.run.model, self.run.layers)
        return []

    def penalty(self) -> torch.Tensor | None:
        """L1 on all gammas while searching."""
        if not self._l1:
            return None
        return self._l1 * sum(part.gamma.abs().sum() for part in self._channels)  # type: ignore[return-value]

    def state_dict(self) -> State:
        """Also which channels were kept."""
        state = super().state_dict()
        kept = (
            {}
            if self._kept is None
            else {
                part.norm_name: kept.to(torch.uint8)
                for part, kept in zip(self._channels, self._kept, strict=True)
            }
        )
        return {**state, "kept": kept}

    def load_state_dict(self, state: State, step: int) -> None:
        """As `state_dict` gave it."""
        super().load_state_dict(state, step)
        held = state["kept"]
        if held:
            self._keep([held[part.norm_name].bool() for part in self._channels])

    def _wanted(self) -> list[torch.Tensor]:
        sizes = [
            checked_scores(part.norm_name, part.gamma.detach().abs()).float()
            for part in self._channels
        ]
        if self._budget == "uniform":
            # One at least: a layer without any would give a constant.
            return [
                keep_largest(size, max(1, kept_count(self._density, len(size)))) for size in sizes
            ]
        scores = [_protected(size) for size in sizes]
        total = torch.tensor(sum(len(score) for score in scores))
        if self.run.shards is not None:
            torch.distributed.all_reduce(total, group=self.run.shards)
        return keep_largest_across(scores, kept_count(self._density, int(total)), self.run.shards)

    def _draw(self, masks: list[torch.Tensor]) -> None:
        run = self.run
        rows = {
            part.layer.name: part.row_mask(kept)
            for part, kept in zip(self._channels, masks, strict=True)
        }
        run.change(
            [rows.get(layer.name, torch.ones_like(layer.mask)) for layer in run.layers],
            Unstructured(),
        )
        for part, kept in zip(self._channels, masks, strict=True):
            for parameter in (part.norm.weight, part.norm.bias):
                run.entries.reset(parameter, ~kept)
        self._keep(masks)

    def _keep(self, masks: list[torch.Tensor]) -> None:
        self._kept = masks
        for part, kept in zip(self._channels, masks, strict=True):
            part.silence(kept)


def _protected(scores: torch.Tensor) -> torch.Tensor:
    """The best tenth of a layer's channels, one at least, ranks above all others."""
    return scores.masked_fill(keep_largest(scores, math.ceil(len(scores) / 10)), math.inf)
