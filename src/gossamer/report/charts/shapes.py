# SPDX-License-Identifier: Apache-2.0
"""Shapes that charts are made of; the template draws them as inline SVG and escapes every text.

In a `Plot`, a chart with two axes, lines, dots and labels stand where their numbers are.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["Plot"]

WIDTH = 960.0
_LABEL_LENGTH = 46


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


def shorten(name: str) -> str:
    """A long name with its middle cut out."""
    if len(name) <= _LABEL_LENGTH:
        return name
    left = _LABEL_LENGTH - 3
    half = left // 2
    return f"{name[: left - half]}...{name[-half:]}"


_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, WIDTH - 24, 26.0, 30.0


@dataclass(frozen=True)
class Plot(Chart):
    """A chart whose axes have the least and the largest number across (`x`) and upwards (`y`)."""

    x: tuple[float, float] = (0.0, 1.0)
    y: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        bottom = self.height - _BOTTOM
        corners = (_LEFT, _TOP), (_LEFT, bottom), (_RIGHT, bottom)
        self.lines.append(Line(corners, "axis"))

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where in the chart two numbers are; an axis of one number has it at its start."""
        across, up = (
            (value - low) / (high - low or 1) for value, (low, high) in ((x, self.x), (y, self.y))
        )
        bottom = self.height - _BOTTOM
        return _LEFT + across * (_RIGHT - _LEFT), bottom - up * (bottom - _TOP)

    def line(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """Join points."""
        self.lines.append(Line(tuple(self.place(*point) for point in points), kind))

    def dot(self, x: float, y: float, kind: str, title: str, side: float = 7.0) -> None:
        """A square around a point."""
        across, down = self.place(x, y)
        self.bars.append(Bar(across - side / 2, down - side / 2, side, side, kind, title))

    def label_x(self, x: float, text: str, kind: str = "value") -> None:
        """A text below the axis."""
        self.labels.append(Label(self.place(x, self.y[0])[0], self.height - 10, text, kind))

    def label_y(self, y: float, text: str) -> None:
        """A text beside the axis."""
        self.labels.append(Label(_LEFT - 8, self.place(self.x[0], y)[1] + 4, text, "end"))
