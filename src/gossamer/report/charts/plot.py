# SPDX-License-Identifier: Apache-2.0
"""Charts with two axes: lines, dots and labels stand where their numbers are; ticks are round."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gossamer.report.charts.shapes import Bar, Chart, Label, Line

__all__ = ["Plot", "number", "ticks"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 24.0, 26.0, 44.0
# Between two ticks, so that their texts do not touch.
_ACROSS, _UPWARDS = 84.0, 46.0


def ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """Round numbers from `low` to `high`, at most `most` steps apart; `low` alone if they meet."""
    span = high - low
    if not span > 0:
        return (low,)
    unit = 10.0 ** math.floor(math.log10(span / most))
    step = next((unit * k for k in (1, 2, 5, 10) if span <= unit * k * most * (1 + 1e-9)), span)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    found = (float(f"{k * step:.12g}") for k in range(first, last + 1))
    return tuple(dict.fromkeys(found)) or (low,)


def number(value: float) -> str:
    """A tick as people read it: 0.25, 1,500, 2e+07."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:g}"


@dataclass(frozen=True)
class Plot(Chart):
    """A chart whose axes have the least and the largest number across (`x`) and upwards (`y`)."""

    x: tuple[float, float] = (0.0, 1.0)
    y: tuple[float, float] = (0.0, 1.0)

    @property
    def room(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of what the axes enclose."""
        return _LEFT, _TOP, self.width - _RIGHT, self.height - _BOTTOM

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where in the chart two numbers are; an axis of one number has it at its start."""
        left, top, right, bottom = self.room
        across, up = (
            (value - low) / (high - low or 1) for value, (low, high) in ((x, self.x), (y, self.y))
        )
        return left + across * (right - left), bottom - up * (bottom - top)

    def axes(
        self,
        names: tuple[str, str] = ("", ""),
        says: tuple[Callable[[float], str], Callable[[float], str]] = (number, number),
    ) -> None:
        """Both axes with their names, ticks and a grid of thin lines; `says` words the ticks."""
        left, top, right, bottom = self.room
        self.lines.append(Line(((left, top), (left, bottom), (right, bottom)), "axis"))
        for y in ticks(*self.y, max(2, int((bottom - top) / _UPWARDS))):
            self.line(((x, y) for x in self.x), "grid")
            self.label_y(y, says[1](y))
        for x in ticks(*self.x, max(2, int((right - left) / _ACROSS))):
            self.line(((x, y) for y in self.y), "grid")
            self.label_x(x, says[0](x), "middle value")
        # The names: of x below the end of its axis, of y over it.
        if names[0]:
            self.labels.append(Label(right, self.height - 6, names[0], "end value"))
        if names[1]:
            self.labels.append(Label(8.0, top - 12, names[1], "value"))

    def line(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """Join points."""
        self.lines.append(Line(tuple(self.place(*point) for point in points), kind))

    def dot(
        self,
        x: float,
        y: float,
        kind: str,
        title: str,
        side: float = 7.0,
        *,
        is_round: bool = False,
    ) -> None:
        """A square around a point, or a disc."""
        across, down = self.place(x, y)
        left, top = across - side / 2, down - side / 2
        corner = side / 2 if "round" in kind else 1.0
        self.bars.append(Bar(left, top, side, side, kind, title, corner))

    def label_x(self, x: float, text: str, kind: str = "value") -> None:
        """A text below the axis."""
        self.labels.append(Label(self.place(x, self.y[0])[0], self.height - 26, text, kind))

    def label_y(self, y: float, text: str) -> None:
        """A text beside the axis."""
        self.labels.append(Label(_LEFT - 8, self.place(self.x[0], y)[1] + 4, text, "end value"))
