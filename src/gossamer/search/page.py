# SPDX-License-Identifier: Apache-2.0
"""The report of a search: the front as a picture, every measurement as a table."""

import math
from collections.abc import Sequence

from gossamer.report import Comparison, Figure, Page, TextTable, describe_machine, format_bytes
from gossamer.report.charts import WIDTH, Bar, Chart, Label, Line
from gossamer.search.front import SearchLimits
from gossamer.search.shrinking import ShrinkResult
from gossamer.search.trial import Point
from gossamer.search.wording import OUT_OF_TIME, verdict

HEAD = ("model", "quality", "lost", "ms", "over dense", "bytes", "")
_HEIGHT, _LEFT, _BOTTOM = 320.0, 60.0, 290.0
# Sides of dots: their area goes with the bytes of the model.
_LEAST_DOT, _LARGEST_DOT = 5.0, 20.0


def search_page(result: ShrinkResult, limits: SearchLimits, title: str) -> Page:
    """Everything a reader needs to agree or disagree with the choice."""
    chosen = result.chosen
    quality, times = (result.dense_quality, result.quality), (chosen.ms * chosen.speedup, chosen.ms)
    comparison = Comparison(
        ("dense", chosen.name),
        (
            Figure(f"{result.quality_name}, data nothing was chosen by", "score", quality),
            Figure("bytes of tensor files", "bytes", (result.points[0].size, chosen.size)),
            Figure(f"ms, {result.timed}", "ms", times, chosen.doubt),
        ),
    )
    return Page(
        title=title,
        lead=verdict(result, limits),
        comparison=comparison,
        layers=(),
        machine=describe_machine(),
        charts=[front_chart(result, limits)],
        tables=[
            TextTable(
                "Everything that was tried, in order",
                HEAD,
                tuple(map(tuple, rows_of(result.points, result.chosen, result.front))),
                f"Quality is {result.quality_name} on the data choices were made by. Times of one"
                " row were taken in turn with dense fp32; those of two rows were not.",
            ),
            TextTable(
                "Forecasts",
                ("mask", "ms", "change of outputs"),
                tuple((f.mask, f"{f.ms:.2f}", f"{f.error:.1%}") for f in result.forecasts),
                "Time of a mask by magnitude, and the mean change of the layers' outputs on"
                " calibration data: what decided the order of the search. "
                + " ".join(result.skipped),
            ),
        ],
        notes=notes_of(result),
    )


def front_chart(result: ShrinkResult, limits: SearchLimits) -> Chart:
    """Quality against time and bytes; a dot per model, the front joined, the limit dashed."""
    chart = Chart(
        "Quality lost against time; area of a dot: bytes (left, low and small is better)",
        _HEIGHT,
        legend=(("dense", "dense"), ("pruned", "sparse")),
    )
    points = result.points
    widest, heaviest = max(p.ms for p in points) * 1.1, max(p.size for p in points)
    highest = max(*(point.lost for point in points), limits.max_loss) * 1.15
    lowest = min(0.0, *(point.lost for point in points)) * 1.15

    def place(ms: float, lost: float) -> tuple[float, float]:
        x = _LEFT + (WIDTH - _LEFT - 20) * ms / widest
        return x, _BOTTOM - (_BOTTOM - 16) * (lost - lowest) / (highest - lowest or 1.0)

    chart.lines.append(Line(((_LEFT, 10.0), (_LEFT, _BOTTOM), (WIDTH - 20, _BOTTOM)), "axis"))
    chart.lines.append(Line((place(0, limits.max_loss), place(widest, limits.max_loss)), "mark"))
    chart.lines.append(Line(tuple(place(p.ms, p.lost) for p in result.front), "curve"))
    for point in points:
        x, y = place(point.ms, point.lost)
        kind = "dense" if point.is_dense else "sparse"
        text = (
            f"{point.name}: {point.ms:.2f} ms, {point.lost:+.2%} lost, {format_bytes(point.size)}"
        )
        dot = max(_LEAST_DOT, _LARGEST_DOT * math.sqrt(point.size / heaviest))
        chart.bars.append(Bar(x - dot / 2, y - dot / 2, dot, dot, kind, text))
        if point == result.chosen:
            chart.labels.append(Label(x + dot, y - dot, f"taken: {point.name}"))
    chart.labels.append(Label(WIDTH - 24, _BOTTOM + 20, f"{widest:.1f} ms", "end value"))
    chart.labels.append(Label(_LEFT - 6, 20, f"{highest:.1%}", "end value"))
    chart.labels.append(Label(_LEFT - 6, _BOTTOM, f"{lowest:.1%}", "end value"))
    return chart


def rows_of(points: Sequence[Point], chosen: Point, on_front: Sequence[Point]) -> list[list[str]]:
    """One line per model, in the order of the search."""
    rows = []
    for point in points:
        mark = "taken" if point == chosen else "front" if point in on_front else ""
        row = [
            point.name,
            f"{point.quality:.2f}" if math.isfinite(point.quality) else "-",
            f"{point.lost:+.2%}",
            f"{point.ms:.2f}",
            f"{point.speedup:.2f}x",
            format_bytes(point.size),
            f"{mark} (busy machine)".strip() if point.doubt else mark,
        ]
        rows.append(row)
    return rows


def notes_of(result: ShrinkResult) -> list[str]:
    """What was not tried and why, the time it took, and how far to trust its times."""
    notes = [
        f"The search took {result.seconds / 60:.1f} of {result.budget_seconds / 60:g} minutes,"
        f" {result.cpu_seconds / 60:.1f} minutes of processors."
    ]
    if result.doubt:
        notes.append(f"{result.doubt}. A quiet one tries more in the same time.")
    if result.left_out:
        notes.append(f"Not tried, or not finished: {' '.join(result.left_out)} {OUT_OF_TIME}")
    return notes
