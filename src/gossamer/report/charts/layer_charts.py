# SPDX-License-Identifier: Apache-2.0
"""Charts of layers and of training: zeros, times in pairs of bars, curves."""

import math
from collections.abc import Sequence

from gossamer.report.charts.plot import Plot
from gossamer.report.charts.rows import BarRow, bar_rows, split_names
from gossamer.report.charts.screens import for_screens, shorten
from gossamer.report.charts.shapes import Chart, Curve, Label
from gossamer.running.layers import LayerTime, LayerTimes, Row

__all__ = ["curve_chart", "layer_bars", "sparsity_chart", "time_chart"]

# Room for a letter of a name.
_LETTER = 6.9
# Of the bars of a whole forward: room for names, and for figures.
_FORWARD_LEFT, _FORWARD_RIGHT = 330.0, 110.0
_LEGEND = (("dense", "dense thin"), ("sparse", "sparse"))
_CURVE_HEIGHT = 220.0


def sparsity_chart(rows: Sequence[Row]) -> Chart:
    """One bar per layer: the part of its weights that is zero."""
    shown: list[BarRow] = []
    for row in rows:
        text = f"{1 - row.density:.1%}"
        bars = [("track", 1.0, ""), ("sparse", 1 - row.density, f"{row.name}: {text} zeros")]
        shown.append((row.name, bars, text))
    left = _label_width(rows)

    def draw(width: float) -> Chart:
        return bar_rows("Zeros per layer", shown, "over", left=left, height=14.0, width=width)

    return for_screens(draw)


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
    title = f"Microseconds of each layer alone, {tokens} token{'s' * (tokens > 1)}"
    legend, left = (*_LEGEND, ("not used", "pale")), _label_width(timed)

    def draw(width: float) -> Chart:
        return bar_rows(title, shown, "below", left=left, height=10.0, legend=legend, width=width)

    return for_screens(draw)


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

    def draw(width: float) -> Chart:
        return bar_rows(
            "Milliseconds of each layer inside a forward",
            shown,
            "below",
            left=_FORWARD_LEFT,
            right=_FORWARD_RIGHT,
            height=10.0,
            legend=_LEGEND,
            width=width,
        )

    return for_screens(draw)


def curve_chart(curve: Curve) -> Chart:
    """A line over steps with the marked moments as verticals."""
    points = [(x, y) for x, y in curve.points if math.isfinite(y)]
    xs, ys = [x for x, _ in curve.points] or [0.0], [y for _, y in points] or [0.0]

    def draw(width: float) -> Chart:
        plot = Plot(
            curve.title, _CURVE_HEIGHT, width=width, x=(min(xs), max(xs)), y=(min(ys), max(ys))
        )
        plot.axes((curve.unit, ""))
        plot.line(points, "curve")
        for step, text in curve.marks:
            plot.line(((step, y) for y in plot.y), "mark")
            x, top = plot.place(step, plot.y[1])
            near_end = x > width / 2
            plot.labels.append(Label(x + (-5 if near_end else 5), top - 8, text, "end" * near_end))
        return plot

    return for_screens(draw)


def _label_width(rows: Sequence[Row]) -> float:
    names = [short for _, short in split_names([row.name for row in rows])]
    return 24 + _LETTER * max((len(shorten(name)) for name in names), default=0)
