# SPDX-License-Identifier: Apache-2.0
"""Labels beside dots, so placed that no text covers another one or a dot."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gossamer.report.charts.shapes import Label, Line

__all__ = ["Box", "Spot", "labels_beside", "text_width"]

# Of the widest usual font at 12 pixels: a letter, also a bold one, and a line of text.
_LETTER, _UP, _DOWN = 7.8, 11.0, 4.0
_GAP, _STEP = 4.0, 9.0
# Right, left, above, below, then the corners: what a reader looks at first.
_WAYS = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1))
# Left, top, right and bottom.
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Spot:
    """A dot at `x`, `y` that reaches so far, its text, and what the pointer shows there."""

    x: float
    y: float
    reach: float
    text: str
    kind: str = ""
    title: str = ""

    @property
    def box(self) -> Box:
        """The dot."""
        return self.x - self.reach, self.y - self.reach, self.x + self.reach, self.y + self.reach


def text_width(text: str) -> float:
    """Pixels that a text takes at most."""
    return _LETTER * len(text)


def _boxes_along(line: Line) -> list[Box]:
    """A line as small boxes, for labels to keep clear of."""
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(line.points):
        count = int(max(abs(x1 - x0), abs(y1 - y0)) / _STEP) + 1
        for k in range(count):
            xs = sorted(x0 + (x1 - x0) * (k + more) / count for more in (0, 1))
            ys = sorted(y0 + (y1 - y0) * (k + more) / count for more in (0, 1))
            boxes.append((xs[0], ys[0] - 0.5, xs[1], ys[1] + 0.5))
    return boxes


def labels_beside(
    spots: Sequence[Spot], room: Box, taken: Sequence[Box] = (), lines: Sequence[Line] = ()
) -> tuple[list[Label], list[Line]] | None:
    """A label for each spot, and lines to those that stand apart; None if the room is too small.

    Args:
        spots: the first ones get the best places.
        room: where labels may be.
        taken: where they and what leads to them may not be.
        lines: that labels keep off where they can, as they always do of dots.
    """
    dots, texts = [spot.box for spot in spots], list[Box](taken)
    drawn = [box for line in lines for box in _boxes_along(line)]
    labels, found = [], []
    for spot in spots:
        places = [box for box in _places(spot, room) if not _meet([box], [*dots, *texts])]
        if not places:
            return None
        # Lines cross no label, if that can be had.
        clear = (
            box
            for box in places
            if not _meet([box], drawn) and not _meet(_boxes_along(_leader(spot, box)), texts)
        )
        box = next(clear, places[0])
        line = _leader(spot, box)
        drawn += _boxes_along(line)
        texts.append(box)
        labels.append(Label(box[0], box[1] + _UP, spot.text, spot.kind, spot.title))
        if line.points:
            found.append(line)
    return labels, found


def _leader(spot: Spot, box: Box) -> Line:
    """From the rim of a dot to its label, if that stands apart; else empty."""
    left, top, right, bottom = box
    x, y = min(max(spot.x, left), right), min(max(spot.y, top), bottom)
    away = math.hypot(x - spot.x, y - spot.y)
    if away < spot.reach + _GAP + _STEP / 2:
        return Line((), "leader")
    part = spot.reach / away
    rim = spot.x + part * (x - spot.x), spot.y + part * (y - spot.y)
    return Line((rim, (x, y)), "leader")


def _places(spot: Spot, room: Box) -> Iterator[Box]:
    """Boxes for the text, nearest first, inside the room."""
    width, height = text_width(spot.text), _UP + _DOWN
    left, top, right, bottom = room
    farthest = int(max(right - left, bottom - top) / _STEP) + 1
    for ring in range(farthest):
        away = spot.reach + _GAP + ring * _STEP
        for across, down in _WAYS:
            x = spot.x + across * away - width * (1 - across) / 2
            y = spot.y + down * away - height * (1 - down) / 2
            if down:
                # Above or below, a text may be moved along its line.
                x = min(max(x, left), right - width)
            if left <= x and x + width <= right and top <= y and y + height <= bottom:
                yield x, y, x + width, y + height


def _meet(some: Sequence[Box], others: Sequence[Box]) -> bool:
    return any(
        one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
        for one in some
        for other in others
    )
