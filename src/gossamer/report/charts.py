# SPDX-License-Identifier: Apache-2.0
"""Geometry of the report's charts; the template draws it as inline SVG and escapes every text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from gossamer.running.layers.explanation import Row

WIDTH = 960.0
_VALUE_WIDTH = 100.0
_LABEL_LENGTH = 46
_LETTER = 6.9
_ROW = 22.0
_BAR = 14.0
_PAIR_ROW = 30.0
_PAIR_BAR = 10.0


@dataclass(frozen=True)
class Bar:
    """A rectangle; `kind` is its CSS class, `title` what the pointer shows."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str = ""


@dataclass(frozen=True)
class Label:
    """A text at a point; `kind` is its CSS class."""

    x: float
    y: float
    text: str
    kind: str = ""
    title: str = ""


@dataclass(frozen=True)
class Line:
    """A polyline through `points`."""

    points: tuple[tuple[float, float], ...]
    kind: str

    def path(self) -> str:
        """The points as SVG writes them."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)


@dataclass(frozen=True)
class Chart:
    """Shapes in a box of WIDTH by `height`."""

    title: str
    height: float
    legend: tuple[tuple[str, str], ...] = ()
    bars: list[Bar] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True)
class Curve:
    """A quantity over steps or another `unit`, with moments worth marking."""

    title: str
    points: tuple[tuple[float, float], ...]
    marks: tuple[tuple[float, str], ...] = ()
    unit: str = "step"


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
        top = index * _PAIR_ROW + 4
        dense, sparse = row.dense_us or 0.0, row.sparse_us or 0.0
        uses_sparse = row.is_sparse
        chart.labels.append(_name(row.name, left, top + 14))
        for offset, time, kind, used in (
            (0.0, dense, "dense", not uses_sparse),
            (_PAIR_BAR + 1, sparse, "sparse", uses_sparse),
        ):
            style = kind if used or kind == "dense" else f"{kind} pale"
            title = f"{row.name}: {kind} {time:.0f} us"
            width = span * time / longest
            chart.bars.append(Bar(left, top + offset, width, _PAIR_BAR, style, title))
        ratio = dense / sparse if sparse else math.inf
        text = f"{ratio:.2f}x" if uses_sparse else "stays dense"
        chart.labels.append(Label(WIDTH - _VALUE_WIDTH + 10, top + 14, text, "value"))
    return chart


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


def shorten(name: str, length: int = _LABEL_LENGTH) -> str:
    """A long name with its middle cut out."""
    if len(name) <= length:
        return name
    half = (length - 3) // 2
    return f"{name[: length - 3 - half]}...{name[-half:]}"
