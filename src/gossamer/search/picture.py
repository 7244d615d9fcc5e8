# SPDX-License-Identifier: Apache-2.0
"""The front as a picture: quality lost against time and bytes, every model named."""

import math

from gossamer.report import format_bytes
from gossamer.report.charts import WIDTH, Chart, Label
from gossamer.report.charts.beside import Spot, labels_beside, text_width
from gossamer.report.charts.plot import Plot
from gossamer.report.charts.screens import for_screens, shorten
from gossamer.search.front import SearchLimits, ShrinkResult
from gossamer.search.trial import Point

__all__ = ["front_chart"]

# A picture is as high as its labels need; it grows by this part until they have room.
_HEIGHT, _GROWTH, _TRIALS = 340.0, 1.3, 8
# Sides of dots: their area goes with the bytes of the model.
_LEAST_DOT, _LARGEST_DOT = 6.0, 20.0
# Lines that no name may cross.
_CLEAR = ("mark", "curve")
_LONGEST, _LONGEST_NARROW = 40, 30
_Ends = tuple[tuple[float, float], tuple[float, float]]
_DENSE, _PRUNED, _OTHER = ("dense", "dense"), ("pruned", "sparse round"), ("other engine", "other")
_TITLE = "Quality lost against time; area of a dot: bytes (left, low and small is better)"


def front_chart(result: ShrinkResult, limits: SearchLimits) -> Chart:
    """A dot per model: squares dense, discs pruned; the front joined, the limits dashed."""
    return for_screens(lambda width: _drawn(result, limits, width))


def _drawn(result: ShrinkResult, limits: SearchLimits, width: float) -> Chart:
    height = _HEIGHT
    for _ in range(_TRIALS):
        plot = _plot(result, limits, width, height)
        if _name(plot, result, limits):
            break
        height *= _GROWTH
    return plot


def _plot(result: ShrinkResult, limits: SearchLimits, width: float, height: float) -> Plot:
    """Everything but the names."""
    points, losses = result.points, [p.lost for p in result.points if math.isfinite(p.lost)]
    heaviest, slowest = max(p.size for p in points), 1.1 * max(p.ms for p in points)
    kinds = set(map(_kind, points))
    legend = tuple(kind for kind in (_DENSE, _PRUNED, _OTHER) if kind in kinds)
    plot = Plot(
        _TITLE,
        height,
        legend=legend,
        width=width,
        x=(0.0, slowest),
        y=(min(0.0, *losses) * 1.15, max(*losses, limits.max_loss) * 1.15),
    )
    plot.axes(("ms", "quality lost"), (lambda ms: f"{ms:g}", _percent))
    for ends, _ in _limit_lines(plot, limits):
        plot.line(ends, "mark")
    plot.line(((point.ms, point.lost) for point in result.front), "curve")
    for point in sorted(points, key=lambda point: -point.size):
        if math.isfinite(point.lost):
            _, kind = _kind(point)
            side = max(_LEAST_DOT, _LARGEST_DOT * math.sqrt(point.size / heaviest))
            plot.dot(point.ms, point.lost, kind, _said(point), side)
    return plot


def _name(plot: Plot, result: ShrinkResult, limits: SearchLimits) -> bool:
    """Write the names of lines and dots; False if the picture is too small for them."""
    left, top, right, bottom = plot.room
    taken = []
    for (_, end), text in _limit_lines(plot, limits):
        x, y = plot.place(*end)
        x, y = max(left, min(x, right - text_width(text))), max(top, y - 18)
        taken.append((x, y, x + text_width(text), y + 14))
        plot.labels.append(Label(x, y + 11, text, "limit"))
    on_front = result.front
    named = sorted(
        (point for point in result.points if math.isfinite(point.lost)),
        key=lambda point: (point != result.chosen, point not in on_front, point.ms),
    )
    longest = _LONGEST if plot.width >= WIDTH else _LONGEST_NARROW
    sides = {bar.title: bar.width for bar in plot.bars}
    spots = []
    for point in named:
        is_taken = point == result.chosen
        text = shorten(f"taken: {point.name}" if is_taken else point.name, longest)
        said, kind = _said(point), "taken" if is_taken else "value"
        spots.append(Spot(*plot.place(point.ms, point.lost), sides[said] / 2, text, kind, said))
    lines = [line for line in plot.lines if line.kind in _CLEAR]
    placed = labels_beside(spots, (left, top, plot.width - 2.0, bottom), taken, lines)
    if placed is None:
        return False
    labels, leaders = placed
    plot.labels.extend(labels)
    plot.lines.extend(leaders)
    return True


def _limit_lines(plot: Plot, limits: SearchLimits) -> list[tuple[_Ends, str]]:
    """Dashed lines, and what they are called at their second end."""
    (least, most), (low, high) = plot.x, plot.y
    level, ms = limits.max_loss, limits.max_ms
    lines = [(((least, level), (most, level)), f"limit: {_percent(level)} lost")]
    if ms is not None and ms <= most:
        lines.append((((ms, low), (ms, high)), f"limit: {ms:g} ms"))
    return lines


def _kind(point: Point) -> tuple[str, str]:
    if not point.is_ours:
        return _OTHER
    return _DENSE if point.is_dense else _PRUNED


def _said(point: Point) -> str:
    """What the pointer shows, and what tells points apart."""
    return f"{point.name}: {point.ms:.2f} ms, {point.lost:+.2%} lost, {format_bytes(point.size)}"


def _percent(part: float) -> str:
    return f"{100 * part:.6g} %"
