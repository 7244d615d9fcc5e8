# SPDX-License-Identifier: Apache-2.0
"""Charts as geometry: shapes in a box of WIDTH, which templates draw as SVG.

Build a `Chart` of bars, labels and lines, or give a `Curve` to a page. `bar_rows` and `layer_bars`
are charts that commands make; those of a report's own page are in `layer_charts` and `timeline`.
"""

from gossamer.report.charts.layer_charts import layer_bars
from gossamer.report.charts.rows import bar_rows
from gossamer.report.charts.shapes import WIDTH, Bar, Chart, Curve, Label, Line

__all__ = ["WIDTH", "Bar", "Chart", "Curve", "Label", "Line", "bar_rows", "layer_bars"]
