# SPDX-License-Identifier: Apache-2.0
"""Charts of layers and of training: zeros, times in pairs of bars, curves."""

import math
from collections.abc import Sequence
from typing import Literal

from gossamer.report.charts.shapes import WIDTH, Bar, Chart, Curve, Label, Plot, shorten
from gossamer.running.layers import LayerTime, LayerTimes, Row

__all__ = [
    "bar_rows",
    "curve_chart",
    "layer_bars",
    "sparsity_chart",
    "time_chart",
]

# Room for figures, and for a letter of a name.
_VALUE_WIDTH, _LETTER = 100.0, 6.9
# Of the bars of a whole forward: room for names, and for figures.
_FORWARD_LEFT, _FORWARD_RIGHT = 330.0, 110.0
_LEGEND = (("dense", "dense"), ("sparse", "sparse"))
_CURVE_HEIGHT = 220.0
# A name, bars (kind, value, title), None where there is no value, and what comes of them.
BarRow = tuple[str, Sequence[tuple[str, float | None, str]], str]


def bar_rows(
    title: str,
    rows: Sequence[BarRow],
    how: Literal["below", "over", "after"],
    *,
    left: float,
    right: float = _VALUE_WIDTH,
    height: float,
    legend: tuple[tuple[str, str], ...] = (),
) -> Chart:
    """Bars of named rows, all on one scale.

    Args:
        title: of the chart.
        rows: from top to bottom.
        how: where the second bar of a row lies: below the first, over it, or after its end.
        left: room for the names.
        right: room for what comes of the bars.
        height: of a bar.
        legend: (text, kind).
    """
    values = [[value or 0.0 for _, value, _ in bars] for _, bars, _ in rows]
    longest = max(map(sum if how == "after" else max, values), default=0.0) or 1.0
    lane = height + 1 if how == "below" else 0.0
    pitch = height + lane + 9
    chart = Chart(title, len(rows) * pitch + 4, legend)
    for index, (name, bars, text) in enumerate(rows):
        x, top = left, index * pitch + 4
        middle = top + (height + lane) / 2 + 4
        chart.labels.append(Label(left - 12, middle, shorten(name), "end", name))
        for place, (kind, value, words) in enumerate(bars):
            width = (WIDTH - left - right) * (value or 0.0) / longest
            if value is not None:
                chart.bars.append(Bar(x, top + place * lane, width, height, kind, words))
            if how == "after":
                x += width
        chart.labels.append(Label(WIDTH - right + 10, middle, text, "value"))
    return chart


def sparsity_chart(rows: Sequence[Row]) -> Chart:
    """One bar per layer: the part of its weights that is zero."""
    shown: list[BarRow] = []
    for row in rows:
        text = f"{1 - row.density:.1%}"
        bars = [("track", 1.0, ""), ("sparse", 1 - row.density, f"{row.name}: {text}")]
        shown.append((row.name, bars, text))
    return bar_rows("Zeros per layer", shown, "over", left=_label_width(rows), height=14.0)


def time_chart(rows: Sequence[Row], tokens: int) -> Chart:
    """Two bars per layer: dense and sparse microseconds; the one that is not used is pale."""
    timed = [row for row in rows if row.dense_us is not None and row.sparse_us is not None]
    shown: list[BarRow] = []
    for row in timed:
        dense, sparse = row.dense_us or 0.0, row.sparse_us or 0.0
        ratio = dense / sparse if sparse else math.inf
        bars = [
            ("dense", dense, f"{row.name}: dense {dense:.0f} us"),
            (
                "sparse" if row.kernel != "dense" else "sparse pale",
                sparse,
                f"{row.name}: sparse {sparse:.0f} us",
            ),
        ]
        shown.append((row.name, bars, "stays dense" if row.kernel == "dense" else f"{ratio:.2f}x"))
    title = f"Microseconds per layer, {tokens} token{'s' * (tokens > 1)}"
    legend = (*_LEGEND, ("not used", "pale"))
    return bar_rows(title, shown, "below", left=_label_width(timed), height=10.0, legend=legend)


def layer_bars(times: LayerTimes) -> Chart:
    """Milliseconds of each layer inside a whole forward, dense and sparse, all on one scale.

    The sum of the layers and the whole forward come last.
    """
    shown: list[BarRow] = []
    for row in (
        *times.layers,
        LayerTime("all layers", times.dense_sum_ms, times.sparse_sum_ms),
        LayerTime("whole forward", times.dense_ms, times.sparse_ms),
    ):
        bars = [
            (kind, ms, f"{row.name}: {kind} {ms or 0.0:.3f} ms")
            for kind, ms in (("dense", row.dense_ms), ("sparse", row.sparse_ms))
        ]
        ms = row.dense_ms if row.sparse_ms is None else row.sparse_ms
        text = f"{ms or 0.0:.3f} ms"
        if row.dense_ms and row.sparse_ms:
            text = f"{row.dense_ms / row.sparse_ms:.2f}x"
        shown.append((row.name, bars, text))
    return bar_rows(
        "Milliseconds of each layer inside a forward",
        shown,
        "below",
        left=_FORWARD_LEFT,
        right=_FORWARD_RIGHT,
        height=10.0,
        legend=_LEGEND,
    )


def curve_chart(curve: Curve) -> Chart:
    """A line over steps with its extremes as labels and the marked moments as verticals."""
    points = [(x, y) for x, y in curve.points if math.isfinite(y)]
    xs, ys = [x for x, _ in curve.points] or [0.0], [y for _, y in points] or [0.0]
    plot = Plot(curve.title, _CURVE_HEIGHT, x=(min(xs), max(xs)), y=(min(ys), max(ys)))
    plot.line(points, "curve")
    for y in plot.y:
        plot.label_y(y, f"{y:.3g}")
    first, last = plot.x
    plot.label_x(first, f"{first:g}", "")
    plot.label_x(last, f"{curve.unit} {last:g}", "end")
    for step, text in curve.marks:
        plot.line(((step, y) for y in plot.y), "mark")
        x, top = plot.place(step, plot.y[1])
        near_end = x > WIDTH / 2
        plot.labels.append(Label(x + (-5 if near_end else 5), top - 8, text, "end" * near_end))
    return plot


def _label_width(rows: Sequence[Row]) -> float:
    return 24 + _LETTER * max((len(shorten(row.name)) for row in rows), default=0)
