# SPDX-License-Identifier: Apache-2.0
"""Shapes that charts are made of; the template draws them as inline SVG and escapes every text."""

from dataclasses import dataclass, field

WIDTH = 960.0


@dataclass(frozen=True)
class Bar:
    """A rectangle; `kind` is its CSS class, `title` what the pointer shows, `corner` its radius."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str = ""
    corner: float = 2.0


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
    """Shapes in a box of `width` by `height`; `narrow` is the same picture for small windows."""

    title: str
    height: float
    legend: tuple[tuple[str, str], ...] = ()
    bars: list[Bar] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    width: float = WIDTH
    narrow: "Chart | None" = None


@dataclass(frozen=True)
class Curve:
    """A quantity over steps or another `unit`, with moments worth marking."""

    title: str
    points: tuple[tuple[float, float], ...]
    marks: tuple[tuple[float, str], ...] = ()
    unit: str = "step"
