# SPDX-License-Identifier: Apache-2.0
"""Charts with two axes: lines, dots and labels stand where their numbers are."""

from collections.abc import Iterable
from dataclasses import dataclass

from gossamer.report.charts.shapes import WIDTH, Bar, Chart, Label, Line

__all__ = ["Plot"]

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
