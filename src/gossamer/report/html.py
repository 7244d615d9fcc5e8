# SPDX-License-Identifier: Apache-2.0
"""`report.html`: one self-contained file. No script, no network, every string escaped."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from gossamer.io.safe_files.directories import write_whole
from gossamer.report.charts import WIDTH, Chart
from gossamer.report.charts.layer_charts import curve_chart, sparsity_chart, time_chart
from gossamer.report.page import Page, tiles

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
        width=WIDTH,
    )


def write_html(page: Page, path: Path) -> Path:
    """Render into `path`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, render_html(page).encode())
    return path


def render_svg(chart: Chart) -> str:
    """One chart as an SVG file of its own."""
    return _template("chart.svg.j2").render(chart=chart, width=WIDTH)


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
