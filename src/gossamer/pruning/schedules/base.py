# SPDX-License-Identifier: Apache-2.0
"""What a schedule is: the part of a controller that knows when masks move, and where to.

When: windows of steps, the cubic ramp, the cosine. Where to: from scores to masks, a budget says
how many of each layer, and the pattern which ones are legal. Steps count optimizer steps: step 0 is
before the first one, `update(1)` comes after it.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gossamer.errors import InputError
from gossamer.patterns import NM, Block, Pattern, Unstructured
from gossamer.pruning.budgets import BUDGETS, BudgetLayer
from gossamer.pruning.legal_counts import keep_highest
from gossamer.pruning.schedules.radix_select import keep_largest_across
from gossamer.pruning.schedules.run import Event, Run


@dataclass(frozen=True)
class Window:
    """Steps begin, begin + every, ... up to `end`, which always is one of them.

    Attributes:
        begin: first step.
        end: last step.
        every: steps in between.
    """

    begin: int
    end: int
    every: int

    def holds(self, step: int) -> bool:
        """Whether something happens after `step`."""
        return step == self.end or step in range(self.begin, self.end, self.every)

    def progress(self, step: int) -> float:
        """0 at begin, 1 at the end and after."""
        if self.begin < step < self.end:
            return (step - self.begin) / (self.end - self.begin)
        return float(step >= self.end)


def cubic(initial: float, final: float, progress: float) -> float:
    """Sparsity of gradual pruning (arXiv 1710.01878); 7/8 of the way at half time."""
    return final + (initial - final) * (1.0 - progress) ** 3


def cosine(first: float, progress: float) -> float:
    """`first` in the beginning, 0 at the end."""
    return first / 2 * (1.0 + math.cos(math.pi * progress))


def generator(seed: int, name: str, step: int) -> torch.Generator:
    """The same numbers for the same seed, layer and step, on every rank and after every resume."""
    digest = hashlib.sha256(f"{seed}/{name}/{step}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


# What state dicts and events may hold: tensors go to safetensors, the rest to JSON.
State = dict[str, Any]
Events = list[Event]
# One tensor [R, K] for every layer: scores, or the bool masks made from them.
PerLayer = Sequence[torch.Tensor]


@dataclass(eq=False, kw_only=True)
class Schedule(ABC):
    """When masks move. Settings are given on construction, in steps; `run` holds the rest.

    A schedule changes masks through `prune` and `run.change(...)` only, which keep weights and
    optimizer state in order.

    Attributes:
        density: of all layers together, once masks are settled.
        budget: how it is shared among layers.
        run: what the schedule works on, set when it is attached.
        kind: as users write it.
        grows: whether a pruned weight may come back, which not every optimizer can follow.
    """

    density: float
    budget: str
    run: Run = field(init=False, repr=False)
    kind = ""
    grows = False

    def start(self) -> Events:
        """Called once when attached, with all layers dense."""
        return self.update(0)

    @abstractmethod
    def update(self, step: int) -> Events:
        """Called after optimizer step number `step`, until it is settled."""

    @abstractmethod
    def is_settled(self, step: int) -> bool:
        """Whether masks never move again after `step`."""

    def wants_gradients(self, step: int) -> bool:
        """Whether `update(step)` will read dense gradients; asked before that backward pass."""
        return False

    def loss_term(self) -> torch.Tensor | None:
        """What to add to the loss of the next step."""
        return None

    def before_optimizer(self) -> None:  # noqa: B027
        """Called inside optimizer.step(), before weights change."""

    def after_optimizer(self) -> None:  # noqa: B027
        """Called inside optimizer.step(), after weights have changed."""

    def state_dict(self) -> State:
        """What a resumed run needs beside weights, masks, optimizer state and the step."""
        return {}

    def load_state_dict(self, state: State, step: int) -> None:  # noqa: B027
        """Go on from `state`, `step` steps in."""

    def magnitudes(self) -> list[torch.Tensor]:
        """|w| [R, K] of every layer; pruned ones rank below all others."""
        return [
            checked_scores(layer.name, pruned_last(layer.matrix.abs(), layer.mask))
            for layer in self.run.layers
        ]

    def prune(self, scores: PerLayer | None = None, number: int = 1, rounds: int = 1) -> None:
        """Keep the highest scores, by magnitude without scores.

        Round `number` of `rounds` keeps density^(number / rounds) of the weights.
        """
        density = self.density ** (number / rounds)
        pattern = self.pattern_at(density, number == rounds)
        found = self.magnitudes() if scores is None else scores
        self.run.change(self.best_masks(found, density, pattern), pattern)

    def best_masks(self, scores: PerLayer, density: float, pattern: Pattern) -> list[torch.Tensor]:
        """The masks of the highest scores at a density of all layers together."""
        if pattern.fixed_density is not None:
            return [pattern.project(score) for score in scores]
        return layer_masks(scores, self.layer_counts(scores, density), pattern)

    def layer_counts(self, scores: PerLayer, density: float) -> list[int]:
        """How many weights each layer keeps."""
        run = self.run
        if self.budget == "global" and run.shards is not None:
            # Kept zeros must rank above pruned ones, and the selection takes nothing below 0.
            ranked = [torch.where(s == -math.inf, 0.0, s.clamp_min(2.0**-149)) for s in scores]
            return [int(mask.sum()) for mask in keep_largest_across(ranked, density, run.shards)]
        layers = [
            BudgetLayer(layer.name, tuple(layer.weight.shape), score)
            for layer, score in zip(run.layers, scores, strict=True)
        ]
        return BUDGETS.get(self.budget)(layers, density)

    def pattern_at(self, density: float, is_last: bool = False) -> Pattern:
        """The pattern of masks of this density; InputError if only the last masks can have one.

        Masks that are denser than the final ones: N rises, other rules stay.
        """
        pattern = self.run.pattern
        if is_last or isinstance(pattern, Unstructured | Block):
            return pattern
        if isinstance(pattern, NM):
            kept = max(pattern.num_kept, math.ceil(density * pattern.group - 1e-9))
            return NM(min(pattern.group, kept), pattern.group)
        raise InputError(
            f"schedule {self.kind}: pattern {pattern} has no masks between dense and its own"
            " density. Use unstructured, N:M or block:RxC, or the schedule oneshot."
        )


@dataclass(eq=False, kw_only=True)
class WindowedSchedule(Schedule):
    """Masks move at the steps of a window and are settled at its end.

    Attributes:
        window: when something happens.
    """

    window: Window

    def is_settled(self, step: int) -> bool:
        """From the end of the window on."""
        return step >= self.window.end


@dataclass(eq=False, kw_only=True)
class RandomStart(Schedule):
    """A random mask at step 0.

    Attributes:
        seed: of positions that are drawn.
    """

    seed: int

    def start(self) -> Events:
        """Draw it."""
        self.prune(self.random_scores(0))
        return [self.run.event(0, "mask")]

    def random_scores(self, step: int) -> list[torch.Tensor]:
        """Numbers in (0, 1) for every weight [R, K], the same on every rank and after every resume.

        They are made on the CPU so that devices agree.
        """
        found = []
        for layer in self.run.layers:
            source = generator(self.seed, layer.name, step)
            drawn = torch.rand(layer.mask.shape, generator=source, dtype=torch.float64)
            found.append((drawn + 1e-12).to(layer.mask.device))
        return found


def pruned_last(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Below every other score where `mask` is False."""
    return scores.masked_fill(~mask, -math.inf)


def checked_scores(name: str, scores: torch.Tensor) -> torch.Tensor:
    """The scores in float32 or wider; InputError naming the layer if one is NaN."""
    num_nan = int(scores.isnan().sum())
    if num_nan:
        raise InputError(
            f"{name}.weight: {num_nan} of {scores.numel()} scores are NaN, so masks cannot move."
            " The training diverged: lower the learning rate, clip gradients, take a checkpoint."
        )
    return scores.float() if scores.element_size() < 4 else scores


def layer_masks(scores: PerLayer, counts: Sequence[int], pattern: Pattern) -> list[torch.Tensor]:
    """Legal masks with the highest scores; counts are those of the nearest legal density."""
    return [
        keep_highest(score, count, pattern) for score, count in zip(scores, counts, strict=True)
    ]
