# SPDX-License-Identifier: Apache-2.0
"""Charts of layers and of training: zeros, times in pairs of bars, curves."""

import math
from collections.abc import Sequence

from gossamer.report.charts.shapes import WIDTH, Bar, Chart, Curve, Label, Line, shorten
from gossamer.running.layers import LayerTime, LayerTimes, Row

__all__ = [
    "curve_chart",
    "layer_bars",
    "sparsity_chart",
    "time_chart",
]

_VALUE_WIDTH = 100.0
_LETTER = 6.9
_ROW = 22.0
_BAR = 14.0
_PAIR_ROW = 30.0
_PAIR_BAR = 10.0
# Of the bars of a whole forward: room for names, and for figures.
_FORWARD_LEFT, _FORWARD_RIGHT = 330.0, 110.0
_LEGEND = (("dense", "dense"), ("sparse", "sparse"))
_CURVE_HEIGHT = 220.0


def sparsity_chart(rows: Sequence[Row]) -> Chart:
    """One bar per layer: the part of its weights that is zero."""
    chart = Chart("Zeros per layer", len(rows) * _ROW + 4)
    left = _label_width(rows)
    span = WIDTH - left - _VALUE_WIDTH
    for index, row in enumerate(rows):
        top = index * _ROW + 4
        sparsity = 1 - row.density
        chart.labels.append(_name(row.name, left, top + 11))
        chart.bars.append(Bar(left, top, span, _BAR, "track"))
        text = f"{sparsity:.1%}"
        chart.bars.append(Bar(left, top, span * sparsity, _BAR, "sparse", f"{row.name}: {text}"))
        chart.labels.append(Label(left + span + 10, top + 11, text, "value"))
    return chart


def time_chart(rows: Sequence[Row], tokens: int) -> Chart:
    """Two bars per layer: dense and sparse microseconds; the one that is not used is pale."""
    timed = [row for row in rows if row.dense_us is not None and row.sparse_us is not None]
    rows_of_bars = []
    for row in timed:
        dense, sparse = row.dense_us or 0.0, row.sparse_us or 0.0
        ratio = dense / sparse if sparse else math.inf
        kind = "sparse" if row.is_sparse else "sparse pale"
        text = f"{ratio:.2f}x" if row.is_sparse else "stays dense"
        bars = [
            ("dense", dense, f"dense {dense:.0f} us"),
            (kind, sparse, f"sparse {sparse:.0f} us"),
        ]
        rows_of_bars.append((row.name, bars, text))
    title = f"Microseconds per layer, {tokens} token{'s' * (tokens > 1)}"
    legend = (*_LEGEND, ("not used", "pale"))
    return _pairs(title, legend, rows_of_bars, _label_width(timed), _VALUE_WIDTH)


def layer_bars(times: LayerTimes) -> Chart:
    """Milliseconds of each layer inside a whole forward, dense and sparse, all on one scale.

    The sum of the layers and the whole forward come last.
    """
    rows = [
        *times.layers,
        LayerTime("all layers", times.dense_sum_ms, times.sparse_sum_ms),
        LayerTime("whole forward", times.dense_ms, times.sparse_ms),
    ]
    rows_of_bars = []
    for row in rows:
        bars = [
            (kind, ms, f"{kind} {ms or 0.0:.3f} ms")
            for kind, ms in (("dense", row.dense_ms), ("sparse", row.sparse_ms))
        ]
        ms = row.dense_ms if row.sparse_ms is None else row.sparse_ms
        text = f"{ms or 0.0:.3f} ms"
        if row.dense_ms and row.sparse_ms:
            text = f"{row.dense_ms / row.sparse_ms:.2f}x"
        rows_of_bars.append((row.name, bars, text))
    title = "Milliseconds of each layer inside a forward"
    return _pairs(title, _LEGEND, rows_of_bars, _FORWARD_LEFT, _FORWARD_RIGHT)


def _pairs(
    title: str,
    legend: tuple[tuple[str, str], ...],
    rows: Sequence[tuple[str, Sequence[tuple[str, float | None, str]], str]],
    left: float,
    right: float,
) -> Chart:
    """Rows of a name, two bars (kind, value, title) on one scale, and what comes of them."""
    longest = max((value or 0.0 for _, bars, _ in rows for _, value, _ in bars), default=0.0) or 1.0
    chart = Chart(title, len(rows) * _PAIR_ROW + 4, legend)
    for index, (name, bars, text) in enumerate(rows):
        top = index * _PAIR_ROW + 4
        chart.labels.append(_name(name, left, top + 14))
        for offset, (kind, value, words) in zip((0.0, _PAIR_BAR + 1), bars, strict=True):
            if value is not None:
                width = (WIDTH - left - right) * value / longest
                shown = Bar(left, top + offset, width, _PAIR_BAR, kind, f"{name}: {words}")
                chart.bars.append(shown)
        chart.labels.append(Label(WIDTH - right + 10, top + 14, text, "value"))
    return chart


def curve_chart(curve: Curve) -> Chart:
    """A line over steps with its extremes as labels and the marked moments as verticals."""
    left, right, top, bottom = 60.0, WIDTH - 20, 26.0, _CURVE_HEIGHT - 26
    xs = [x for x, _ in curve.points] or [0.0]
    ys = [y for _, y in curve.points if math.isfinite(y)] or [0.0]
    low_x, high_x, low, high = min(xs), max(xs), min(ys), max(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - low_x) / (high_x - low_x or 1)
        up = (y - low) / (high - low or 1)
        return left + across * (right - left), bottom - up * (bottom - top)

    chart = Chart(curve.title, _CURVE_HEIGHT)
    chart.lines.append(Line(((left, top), (left, bottom), (right, bottom)), "axis"))
    points = tuple(place(x, y) for x, y in curve.points if math.isfinite(y))
    chart.lines.append(Line(points, "curve"))
    chart.labels.extend(
        [
            Label(left - 8, bottom + 4, f"{low:.3g}", "end"),
            Label(left - 8, top + 4, f"{high:.3g}", "end"),
            Label(left, bottom + 20, f"{low_x:g}"),
            Label(right, bottom + 20, f"{curve.unit} {high_x:g}", "end"),
        ]
    )
    for step, text in curve.marks:
        x, _ = place(step, low)
        chart.lines.append(Line(((x, top), (x, bottom)), "mark"))
        near_end = x > (left + right) / 2
        chart.labels.append(Label(x + (-5 if near_end else 5), top - 8, text, "end" * near_end))
    return chart


def _name(name: str, left: float, y: float) -> Label:
    return Label(left - 12, y, shorten(name), "end", name)


def _label_width(rows: Sequence[Row]) -> float:
    return 24 + _LETTER * max((len(shorten(row.name)) for row in rows), default=0)
