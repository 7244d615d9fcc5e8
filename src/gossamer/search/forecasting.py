# SPDX-License-Identifier: Apache-2.0
"""Forecasts within a budget: made once, when they are first asked for, if there is time."""

from collections.abc import Callable
from pathlib import Path

from gossamer.search.budget import Budget, Deadline, OutOfTime
from gossamer.search.candidates import Mask
from gossamer.search.forecast import FORECAST_FILE, Forecast, Forecasts, forecast, known_forecasts
from gossamer.search.trial import read_stopped, write_stopped
from gossamer.search.workloads.workload import Workload


class Forecasting:
    """Forecasts of all masks by name; none if the time is up first.

    Attributes:
        found: what was forecast.
        left_out: what is to be said if there was no time.
    """

    def __init__(
        self,
        work: Workload,
        masks: tuple[Mask, ...],
        folder: Path,
        budget: Budget,
        deadline: Callable[[float], Deadline],
    ) -> None:
        self._work, self._masks, self._folder = work, masks, folder
        self._budget, self._deadline = budget, deadline
        self._stopped = folder / f"{FORECAST_FILE}.stopped"
        self.found: dict[str, Forecast] = {}
        self.left_out: list[str] = []

    def __call__(self) -> dict[str, Forecast]:
        """By the name of the mask; the budget is charged with what they took."""
        made = known_forecasts(self._folder) or self._make()
        if made is not None:
            self._budget.spent += made.seconds
            self.found.update(made.by_mask)
        return self.found

    def _make(self) -> Forecasts | None:
        earlier, budget = read_stopped(self._stopped), self._budget
        before = 0.0 if earlier is None else earlier.seconds
        if budget.for_forecasts > before:
            try:
                deadline = self._deadline(budget.for_forecasts - before)
                return forecast(self._work, self._masks, self._folder, deadline, before)
            except OutOfTime as stop:
                write_stopped(self._stopped, stop, before, budget.for_forecasts)
                before += stop.seconds
        budget.spent += before
        self.left_out += [
            f"oneshot-{mask.name}: the time was up before its forecast." for mask in self._masks
        ]
        return None
