# SPDX-License-Identifier: Apache-2.0
"""Plans as pictures: where time and memory go, who works when, how it scales."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from gossamer.planner.candidates import PlannedLayout
from gossamer.planner.schedules import ActionKind
from gossamer.planner.simulation import Played
from gossamer.report.charts import WIDTH, Bar, Chart, Label, Line

_HUES = ("hue1", "hue2", "hue3", "hue4", "hue5", "hue6", "dense")
_ROW, _BAR, _LEFT, _RIGHT = 26.0, 16.0, 190.0, 90.0
_KINDS = {
    ActionKind.FORWARD: "hue1",
    ActionKind.BACKWARD: "hue3",
    ActionKind.INPUT: "hue3",
    ActionKind.WEIGHT: "hue4",
}
_MAX_RANKS = 32
_MAX_SPANS = 4000


def part_charts(found: Mapping[str, PlannedLayout]) -> list[Chart]:
    """Seconds of a step and bytes of the fullest rank, by part, for the best layout of a state."""
    times = {name: asdict(one.time) for name, one in found.items()}
    sizes = {name: asdict(one.memory) for name, one in found.items()}
    return [
        _stacked("Seconds of a step, in closed form (forecast)", times, lambda x: f"{x:.3g} s"),
        _stacked("Bytes of the fullest rank (forecast)", sizes, lambda x: f"{x / 1e9:.3g} GB"),
    ]


def timeline_chart(played: Played, title: str) -> Chart:
    """Who works when: a row per rank, a bar per forward and backward."""
    ranks = range(min(_MAX_RANKS, len(played.finished)))
    scale, height = (WIDTH - 70) / (played.seconds or 1), len(ranks) * 18.0 + 24
    shown = (span for span in played.spans if span.rank in ranks)
    return Chart(
        title,
        height,
        (("forward", "hue1"), ("backward", "hue3"), ("weights", "hue4")),
        [
            *(Bar(60, rank * 18.0 + 4, WIDTH - 70, 12, "track") for rank in ranks),
            *(
                Bar(
                    60 + span.start * scale,
                    span.rank * 18.0 + 4,
                    max(0.6, (span.end - span.start) * scale - 0.6),
                    12,
                    _KINDS[span.action.kind],
                    f"{span.action.kind.value}{span.action.microbatch}, stage {span.action.stage}",
                )
                for span in sorted(shown, key=lambda span: span.start)[:_MAX_SPANS]
            ),
        ],
        [
            *(Label(52, rank * 18.0 + 14, f"rank {rank}", "end") for rank in ranks),
            Label(WIDTH - 10, height - 4, f"{played.seconds:.3g} s", "end"),
        ],
    )


def scaling_chart(
    title: str, curves: Mapping[str, Sequence[tuple[int, float]]], height: float = 360.0
) -> Chart:
    """Seconds of a step over ranks, both on logarithmic axes; a straight line scales perfectly."""
    hues = dict(zip(curves, ("dense", *_HUES), strict=False))
    chart = Chart(title, height, legend=tuple((name, hues[name]) for name in curves))
    points = [point for curve in curves.values() for point in curve]
    xs = [math.log2(ranks) for ranks, _ in points]
    ys = [math.log2(seconds) for _, seconds in points]
    left, right, top, bottom = 70.0, WIDTH - 30, 20.0, height - 34

    def place(ranks: float, seconds: float) -> tuple[float, float]:
        across = (math.log2(ranks) - min(xs)) / (max(xs) - min(xs) or 1)
        up = (math.log2(seconds) - min(ys)) / (max(ys) - min(ys) or 1)
        return left + across * (right - left), bottom - up * (bottom - top)

    chart.lines.append(Line(((left, top), (left, bottom), (right, bottom)), "axis"))
    for ranks in sorted({ranks for ranks, _ in points}):
        chart.labels.append(Label(place(ranks, 1)[0], height - 12, f"{ranks}", "value"))
    for seconds in (2 ** min(ys), 2 ** max(ys)):
        chart.labels.append(Label(left - 8, place(1, seconds)[1] + 4, f"{seconds:.3g} s", "end"))
    for name, curve in curves.items():
        placed = tuple(place(*point) for point in curve)
        chart.lines.append(Line(placed, hues[name]))
        for (x, y), (ranks, seconds) in zip(placed, curve, strict=True):
            text = f"{name}, {ranks} ranks: {seconds:.3g} s"
            chart.bars.append(Bar(x - 3.5, y - 3.5, 7, 7, hues[name], text))
    return chart


def _stacked(
    title: str, rows: Mapping[str, Mapping[str, float]], text: Callable[[float], str]
) -> Chart:
    parts = [part for part in next(iter(rows.values())) if any(row[part] for row in rows.values())]
    hues = dict(zip(parts, _HUES, strict=False))
    chart = Chart(
        title,
        len(rows) * _ROW + 6,
        legend=tuple((part.replace("_", "-"), hues[part]) for part in parts),
    )
    longest = max(sum(row.values()) for row in rows.values()) or 1.0
    span = WIDTH - _LEFT - _RIGHT
    for index, (name, row) in enumerate(rows.items()):
        top, x = index * _ROW + 4, _LEFT
        chart.labels.append(Label(_LEFT - 10, top + 12, name, "end"))
        for part in parts:
            width = span * row[part] / longest
            if width:
                chart.bars.append(
                    Bar(x, top, width, _BAR, hues[part], f"{part}: {text(row[part])}")
                )
            x += width
        chart.labels.append(Label(x + 8, top + 12, text(sum(row.values())), "value"))
    return chart
