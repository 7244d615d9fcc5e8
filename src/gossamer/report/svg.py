# SPDX-License-Identifier: Apache-2.0
"""Charts as an .svg file of their own, for pages that are not the report."""

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from gossamer.report.charts import WIDTH, Chart

_CAPTION = 26.0


def render_svg(charts: Sequence[Chart]) -> str:
    """The charts one below the other, each with its title and legend; every text is escaped."""
    environment = Environment(
        loader=PackageLoader("gossamer.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    tops, height = [], 0.0
    for chart in charts:
        tops.append(height + _CAPTION)
        height += _CAPTION + chart.height + 10
    return environment.get_template("charts.svg.j2").render(
        charts=list(zip(tops, charts, strict=True)), width=WIDTH, height=height
    )
