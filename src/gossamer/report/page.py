# SPDX-License-Identifier: Apache-2.0
"""What a report page says, and the one file that it becomes: no script, no network, all escaped.

A page names its machine and versions: measured numbers mean nothing without.
"""

import itertools
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

import gossamer
from gossamer.io.safe_files.directories import write_whole
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.report.charts import WIDTH, Chart, Curve
from gossamer.report.charts.layer_charts import curve_chart, sparsity_chart, time_chart
from gossamer.report.comparison import Comparison, Figure
from gossamer.running.layers import Row

__all__ = ["Page", "TextTable"]


def describe_machine() -> dict[str, str]:
    """What a reader needs to compare numbers; no names of hosts or users."""
    return {
        "cpu": cpu_name(),
        "kernels": active_kernels(),
        "threads": str(torch.get_num_threads()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "gossamer": gossamer.__version__,
    }


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


# A model with thousands of layers still gives a page that opens at once.
MAX_LAYERS = 400
_CAPTION = 26.0


def render_html(page: Page) -> str:
    """The page as HTML with inline SVG."""
    once = {row.name: row for row in page.layers}
    shown = dict(itertools.islice(once.items(), MAX_LAYERS))
    layers = [row for row in page.layers if row.name in shown]
    counts = sorted({row.tokens for row in layers if row.tokens is not None})
    times = (time_chart([row for row in layers if row.tokens == n], n) for n in counts)
    return _template("report.html.j2").render(
        page=page,
        tiles=tiles(page.comparison),
        cells=page.comparison.cells(),
        charts=[chart for chart in (sparsity_chart(list(shown.values())), *times) if chart.bars],
        curves=[curve_chart(curve) for curve in page.curves],
        layers=layers,
        hidden_layers=len(once) - len(shown),
    )


def write_html(page: Page, path: Path) -> Path:
    """Render into `path`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, render_html(page).encode())
    return path


def render_svg(chart: Chart) -> str:
    """One chart as an SVG file of its own."""
    return _template("chart.svg.j2").render(chart=chart)


def render_charts(charts: Sequence[Chart]) -> str:
    """Charts one below the other as an SVG file, each with its title and legend."""
    tops, height = [], 0.0
    for chart in charts:
        tops.append(height + _CAPTION)
        height += _CAPTION + chart.height + 10
    placed = list(zip(tops, charts, strict=True))
    return _template("charts.svg.j2").render(charts=placed, width=WIDTH, height=height)


def _template(name: str) -> Template:
    return Environment(
        loader=PackageLoader("gossamer.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(name)
