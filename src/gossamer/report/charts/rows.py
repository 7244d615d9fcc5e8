# SPDX-License-Identifier: Apache-2.0
"""Bars of named rows on one scale; rows of one block of a model stand together under its name."""

from collections.abc import Sequence
from typing import Literal

from gossamer.report.charts.screens import shorten
from gossamer.report.charts.shapes import WIDTH, Bar, Chart, Label

# Room for figures, for a line of names, for the name of a block.
_VALUE_WIDTH, _NAME_LINE, _BLOCK_LINE = 100.0, 17.0, 24.0
_NARROW_NAME, _NARROW_VALUE = 44, 84.0
# A dense bar is thin where a sparse one lies below: they differ in shape, not only in colour.
_THIN = 0.5
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
    width: float = WIDTH,
) -> Chart:
    """Bars of named rows, all on one scale. In a narrow chart, names stand over their bars.

    Args:
        title: of the chart.
        rows: from top to bottom.
        how: where the second bar of a row lies: below the first, over it, or after its end.
        left: room for the names.
        right: room for what comes of the bars.
        height: of a bar.
        legend: (text, kind).
        width: of the chart.
    """
    values = [[value or 0.0 for _, value, _ in bars] for _, bars, _ in rows]
    longest = max(map(sum if how == "after" else max, values), default=0.0) or 1.0
    is_narrow = width < WIDTH
    if is_narrow:
        left, right = 0.0, min(right, _NARROW_VALUE)
    lane = height + 1 if how == "below" else 0.0
    places = split_names([name for name, _, _ in rows])
    bars_of, labels, top, block = list[Bar](), list[Label](), 4.0, ""
    for (name, bars, text), (in_block, short) in zip(rows, places, strict=True):
        if in_block != block and in_block:
            top += _BLOCK_LINE
            labels.append(Label(0.0, top - 8, shorten(in_block), "block", in_block))
        block = in_block
        middle = top + (height + lane) / 2 + 4
        if is_narrow:
            labels.append(Label(0.0, top + 11, shorten(short, _NARROW_NAME), "", name))
            top += _NAME_LINE
            middle += _NAME_LINE
        else:
            labels.append(Label(left - 12, middle, shorten(short), "end", name))
        x = left
        for place, (kind, value, words) in enumerate(bars):
            long = (width - left - right) * (value or 0.0) / longest
            is_thin = how == "below" and kind == "dense"
            thick = height * _THIN if is_thin else height
            y = top + place * lane + (height - thick if is_thin else 0.0)
            if value is not None:
                bars_of.append(Bar(x, y, long, thick, kind, words))
            if how == "after":
                x += long
        labels.append(Label(width - right + 10, middle, text, "value"))
        top += height + lane + 9
    return Chart(title, top, legend, bars_of, labels, width=width)


def split_names(names: Sequence[str]) -> list[tuple[str, str]]:
    """Block and rest of the names of layers: `encoder.layer.3` and `attention.query`.

    A block ends with the first part that is a number. One of a single layer is none, nor is one
    whose layers do not follow each other.
    """
    split = [_split(name) for name in names]
    runs: dict[str, list[int]] = {}
    for place, (block, _) in enumerate(split):
        runs.setdefault(block, []).append(place)
    whole = {b for b, run in runs.items() if b and len(run) > 1 and run[-1] - run[0] < len(run)}
    return [
        (block, rest) if block in whole else ("", name)
        for name, (block, rest) in zip(names, split, strict=True)
    ]


def _split(name: str) -> tuple[str, str]:
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts))
    if number >= len(parts) - 1:
        return "", name
    return ".".join(parts[: number + 1]), ".".join(parts[number + 1 :])
