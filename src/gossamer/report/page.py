# SPDX-License-Identifier: Apache-2.0
"""What a report page says, before it has any form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gossamer.report.charts import Chart, Curve
from gossamer.report.comparison import Comparison, Figure
from gossamer.report.machine import describe_machine
from gossamer.running.layers import Row

__all__ = [
    "Page",
    "TextTable",
    "tiles",
]

# A score that fell by more than this is shown as a loss.
ONE_POINT = 0.01


@dataclass(frozen=True)
class Tile:
    """One headline number."""

    value: str
    text: str
    good: bool


@dataclass(frozen=True)
class TextTable:
    """A further table; `note` is printed under it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Page:
    """Everything a report shows.

    Attributes:
        title: what was done to which model.
        lead: one or two sentences under the title.
        comparison: measured figures beside dense.
        layers: rows of `gossamer.explain` for the compiled model.
        machine: the one that was measured on.
        steps: (what was done, what came of it), in order.
        curves: quantities over training steps.
        charts: further pictures, shown before the tables.
        tables: further tables.
        notes: limits, fallbacks and what was not measured.
    """

    title: str
    lead: str
    comparison: Comparison
    layers: Sequence[Row] = ()
    machine: Mapping[str, str] = field(default_factory=describe_machine)
    steps: Sequence[tuple[str, str]] = ()
    curves: Sequence[Curve] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[TextTable] = ()
    notes: Sequence[str] = ()


def tiles(comparison: Comparison) -> list[Tile]:
    """The headline of a comparison: second model against the first."""
    models = comparison.models
    return [tile for figure in comparison.figures if (tile := _tile(figure, models))]


def _tile(figure: Figure, models: tuple[str, ...]) -> Tile | None:
    (first, second, *_), gain = figure.values, figure.gain(1)
    if figure.doubt or first is None or second is None:
        return None
    if figure.unit == "score":
        text = f"{figure.name}; {models[0]}: {figure.cell(0)}"
        return Tile(figure.cell(1), text, second >= first - ONE_POINT)
    if gain is None:
        return None
    better, worse = ("smaller", "larger") if figure.unit == "bytes" else ("faster", "slower")
    if gain >= 1:
        return Tile(f"{gain:.1f}x", f"{better} ({figure.name})", True)
    return Tile(f"{1 / gain:.1f}x", f"{worse} ({figure.name})", False)
