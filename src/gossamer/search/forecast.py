# SPDX-License-Identifier: Apache-2.0
"""What a mask would cost and break, before anything is solved or trained.

Milliseconds: a mask by magnitude, which takes no time to make, packed and timed as the real one
will be; the time of a model depends on where its zeros are allowed, not on which weights they hit.
Unstructured ones are timed at both ends, between which time goes with the kept weights.
Error: one pass of calibration data says how much each layer's outputs would change; it orders masks
by the quality they leave, and does not say how much that is.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gossamer.pruning.budgets import pattern_errors
from gossamer.pruning.targets import find_targets
from gossamer.runs import sparsify
from gossamer.search.budget import Deadline, OutOfTime, TimeBudget
from gossamer.search.candidates import Mask
from gossamer.search.records import read_record, write_record
from gossamer.search.trial import compiled, read_stopped, write_stopped
from gossamer.search.workloads import Workload

FORECAST_FILE = "forecasts.json"
_TIMED_SECONDS = 0.5
# A mask must be this much worse in both to be left out: forecasts are no measurements.
_MARGIN = 1.05
_ANY = "unstructured"


@dataclass(frozen=True)
class MaskForecast:
    """Of one mask.

    Attributes:
        mask: its name.
        ms: of the timed call, with int8 kernels allowed.
        error: mean relative change of the layers' outputs.
    """

    mask: str
    ms: float
    error: float


@dataclass(frozen=True)
class Forecasts:
    """Of all masks that fit the model, and the seconds that took."""

    seconds: float
    masks: tuple[MaskForecast, ...]


def worth_trying(found: dict[str, MaskForecast], masks: Sequence[Mask]) -> list[Mask]:
    """Masks that no other one beats in time and error at once, gentlest first."""
    known = [mask for mask in masks if mask.name in found]
    others = [(_MARGIN * found[mask.name].ms, _MARGIN * found[mask.name].error) for mask in known]

    def beaten(mask: Mask) -> bool:
        mine = found[mask.name]
        return any(ms <= mine.ms and error <= mine.error for ms, error in others)

    left = [mask for mask in known if not beaten(mask)]
    return sorted(left, key=lambda mask: found[mask.name].error)


def _on_line(place: float, ends: dict[float, float]) -> float:
    """Milliseconds of an unstructured mask, between those of the two that were timed."""
    (low, first), (high, last) = min(ends.items()), max(ends.items())
    # More zeros never take longer: what measures otherwise is noise.
    return float(np.interp(place, (low, high), (first, min(first, last))))


@dataclass
class Forecasting:
    """Forecasts of all masks within a budget: made once, when they are first asked for.

    There are none if the time is up first.

    Attributes:
        work: the search.
        masks: to forecast.
        folder: where they are kept.
        budget: of the search.
        deadline: for so many seconds from now.
        found: what was forecast.
        left_out: what is to be said if there was no time.
    """

    work: Workload
    masks: tuple[Mask, ...]
    folder: Path
    budget: TimeBudget
    deadline: Callable[[float], Deadline]
    found: dict[str, MaskForecast] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def __call__(self) -> dict[str, MaskForecast]:
        """By the name of the mask; the budget is charged with what they took."""
        place = self.folder / FORECAST_FILE
        made = read_record(place, Forecasts) if place.exists() else self._make()
        if made is not None:
            self.budget.spent += made.seconds
            self.found |= {each.mask: each for each in made.masks}
        return self.found

    def _make(self) -> Forecasts | None:
        place, budget = self.folder / f"{FORECAST_FILE}.stopped", self.budget
        before = read_stopped(place).seconds
        if budget.for_forecasts > before:
            try:
                return self._forecast(self.deadline(budget.for_forecasts - before), before)
            except OutOfTime as stop:
                write_stopped(place, stop, before, budget.for_forecasts)
                before += stop.seconds
        budget.spent += before
        self.left_out += [
            f"oneshot-{mask.name}: the time was up before its forecast." for mask in self.masks
        ]
        return None

    def _forecast(self, deadline: Deadline, before: float) -> Forecasts:
        """Of every mask; `before` are the seconds of earlier runs that did not finish it.

        Raises:
            OutOfTime: by the deadline, between two masks.
        """
        work = self.work
        targets = find_targets(work.model, ignore=work.kept_dense)
        choices = [(mask.rule, 1 - mask.sparsity) for mask in self.masks]
        errors = pattern_errors(work.model, work.batches(), targets, choices)
        known = [
            (m, error) for m, error in zip(self.masks, errors, strict=True) if math.isfinite(error)
        ]

        def milliseconds(mask: Mask) -> float:
            deadline.tick()
            model = copy.deepcopy(work.model)
            sparsify(model, sparsity=mask.asked, pattern=mask.pattern, ignore=work.kept_dense)
            # The lowest precision that candidates are measured with: fp32 kernels take part in it.
            return work.milliseconds(compiled(model, work, "int8"), _TIMED_SECONDS)

        plain = sorted((m for m, _ in known if m.pattern == _ANY), key=lambda mask: mask.sparsity)
        ends = {mask.sparsity: milliseconds(mask) for mask in plain[:: max(len(plain) - 1, 1)]}
        found = []
        for mask, error in known:
            is_plain = mask.pattern == _ANY
            ms = _on_line(mask.sparsity, ends) if is_plain else milliseconds(mask)
            found.append(MaskForecast(mask.name, ms, error))
        made = Forecasts(before + deadline.elapsed, tuple(found))
        write_record(self.folder / FORECAST_FILE, made)
        return made
