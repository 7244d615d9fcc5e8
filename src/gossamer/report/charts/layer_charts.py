# SPDX-License-Identifier: Apache-2.0
"""Charts of layers and of training: zeros, times in pairs of bars, curves."""

import math
from collections.abc import Sequence

from gossamer.report.charts.shapes import WIDTH, Bar, Chart, Curve, Label, Line, shorten
from gossamer.running.layers import LayerTime, LayerTimes, Row

_VALUE_WIDTH = 100.0
_LETTER = 6.9
_ROW = 22.0
_BAR = 14.0
_PAIR_ROW = 30.0
_PAIR_BAR = 10.0
# Of the bars of a whole forward: room for names, and for figures.
_FORWARD_LEFT, _FORWARD_RIGHT = 330.0, 110.0


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
    longest = max((max(row.dense_us or 0, row.sparse_us or 0) for row in timed), default=1.0)
    chart = Chart(
        f"Microseconds per layer, {tokens} token{'s' * (tokens > 1)}",
        len(timed) * _PAIR_ROW + 4,
        legend=(("dense", "dense"), ("sparse", "sparse"), ("not used", "pale")),
    )
    left = _label_width(timed)
    span = WIDTH - left - _VALUE_WIDTH
    for index, row in enumerate(timed):
        dense, sparse = row.dense_us or 0.0, row.sparse_us or 0.0
        uses_sparse = row.is_sparse
        ratio = dense / sparse if sparse else math.inf
        bars = (
            ("dense", span * dense / longest, f"dense {dense:.0f} us"),
            (
                "sparse" if uses_sparse else "sparse pale",
                span * sparse / longest,
                f"sparse {sparse:.0f} us",
            ),
        )
        text = f"{ratio:.2f}x" if uses_sparse else "stays dense"
        _add_pair(chart, index, row.name, bars, text, left=left, right=_VALUE_WIDTH)
    return chart


def layer_bars(times: LayerTimes) -> Chart:
    """Milliseconds of each layer inside a whole forward, dense and sparse, all on one scale.

    The sum of the layers and the whole forward come last.
    """
    rows = [
        *times.layers,
        LayerTime("all layers", times.dense_sum_ms, times.sparse_sum_ms),
        LayerTime("whole forward", times.dense_ms, times.sparse_ms),
    ]
    longest = max(max(row.dense_ms or 0.0, row.sparse_ms or 0.0) for row in rows) or 1.0
    chart = Chart(
        "Milliseconds of each layer inside a forward",
        len(rows) * _PAIR_ROW + 4,
        legend=(("dense", "dense"), ("sparse", "sparse")),
    )
    span = WIDTH - _FORWARD_LEFT - _FORWARD_RIGHT
    for index, row in enumerate(rows):
        bars = [
            None if ms is None else (kind, span * ms / longest, f"{kind} {ms:.3f} ms")
            for kind, ms in (("dense", row.dense_ms), ("sparse", row.sparse_ms))
        ]
        ms = row.dense_ms if row.sparse_ms is None else row.sparse_ms
        text = f"{ms or 0.0:.3f} ms"
        if row.dense_ms and row.sparse_ms:
            text = f"{row.dense_ms / row.sparse_ms:.2f}x"
        _add_pair(chart, index, row.name, bars, text, left=_FORWARD_LEFT, right=_FORWARD_RIGHT)
    return chart


def _add_pair(
    chart: Chart,
    index: int,
    name: str,
    bars: Sequence[tuple[str, float, str] | None],
    text: str,
    *,
    left: float,
    right: float,
) -> None:
    """A row with a name, two bars (kind, width, title) and what comes of them."""
    top = index * _PAIR_ROW + 4
    chart.labels.append(_name(name, left, top + 14))
    for offset, bar in zip((0.0, _PAIR_BAR + 1), bars, strict=True):
        if bar is not None:
            kind, width, title = bar
            chart.bars.append(Bar(left, top + offset, width, _PAIR_BAR, kind, f"{name}: {title}"))
    chart.labels.append(Label(WIDTH - right + 10, top + 14, text, "value"))


def curve_chart(curve: Curve, height: float = 220.0) -> Chart:
    """A line over steps with its extremes as labels and the marked moments as verticals."""
    left, right, top, bottom = 60.0, WIDTH - 20, 26.0, height - 26
    xs = [x for x, _ in curve.points] or [0.0]
    ys = [y for _, y in curve.points if math.isfinite(y)] or [0.0]
    low_x, high_x, low, high = min(xs), max(xs), min(ys), max(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - low_x) / (high_x - low_x or 1)
        up = (y - low) / (high - low or 1)
        return left + across * (right - left), bottom - up * (bottom - top)

    chart = Chart(curve.title, height)
    chart.lines.append(Line(((left, top), (left, bottom), (right, bottom)), "axis"))
    points = tuple(place(x, y) for x, y in curve.points if math.isfinite(y))
    chart.lines.append(Line(points, "curve"))
    chart.labels.extend(
        (
            Label(left - 8, bottom + 4, f"{low:.3g}", "end"),
            Label(left - 8, top + 4, f"{high:.3g}", "end"),
            Label(left, height - 6, f"{low_x:g}"),
            Label(right, height - 6, f"{curve.unit} {high_x:g}", "end"),
        )
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
