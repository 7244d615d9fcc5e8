# SPDX-License-Identifier: Apache-2.0
"""Who worked when in a pipeline, as a chart: a row per stage or rank, a bar per piece of work."""

from collections.abc import Sequence

from gossamer.report.charts import WIDTH, Bar, Chart, Label
from gossamer.training.distributed.pipeline import WorkSpan

__all__ = ["timeline_chart"]

# Kind of work -> what it is called, and its colour.
_KINDS = {
    "forward": ("forward", "hue1"),
    "backward": ("backward", "hue3"),
    "input": ("backward", "hue3"),
    "weight": ("weights", "hue4"),
}
_LEFT, _RIGHT, _ROW, _BAR = 70.0, 10.0, 22.0, 16.0
_LETTER = 7.5
# A step of a thousand microbatches, or of a thousand ranks, still gives a page that opens at once.
MAX_SPANS, MAX_ROWS = 4000, 64


def timeline_chart(
    spans: Sequence[WorkSpan],
    title: str,
    seconds: float | None = None,
    ranks: int | None = None,
) -> Chart:
    """One step of a pipeline.

    Args:
        spans: of all stages, on one clock.
        title: of the chart.
        seconds: length of the axis, for charts that are compared; None is up to the last span.
        ranks: a row is a rank of so many, which has every so-manieth stage; None: a stage.
    """

    def row_of(span: WorkSpan) -> int:
        return span.stage if ranks is None else span.stage % ranks

    shown = sorted(spans, key=lambda span: span.start)[:MAX_SPANS]
    rows = sorted(set(map(row_of, shown)))[:MAX_ROWS]
    begin = min((span.start for span in shown), default=0.0)
    length = seconds or max((span.stop - begin for span in shown), default=0.0) or 1.0
    legend = dict.fromkeys(_KINDS[span.kind] for span in shown)
    chart = Chart(title, len(rows) * _ROW + 24, legend=tuple(legend))
    across = WIDTH - _LEFT - _RIGHT
    tops = {row: place * _ROW + 4 for place, row in enumerate(rows)}
    for row, top in tops.items():
        name = "stage" if ranks is None else "rank"
        chart.labels.append(Label(_LEFT - 10, top + 12, f"{name} {row}", "end"))
        chart.bars.append(Bar(_LEFT, top, across, _BAR, "track"))
    for span in (span for span in shown if row_of(span) in tops):
        top, took, number = tops[row_of(span)], span.stop - span.start, str(span.microbatch)
        x = _LEFT + (span.start - begin) / length * across
        width = max(0.5, took / length * across - 0.5)
        where = "" if ranks is None else f", stage {span.stage}"
        text = f"{span.kind} {number}{where}: {took * 1e3:.3g} ms"
        chart.bars.append(Bar(x, top, width, _BAR, _KINDS[span.kind][1], text))
        free = width - _LETTER * len(number)
        if free > 2:
            chart.labels.append(Label(x + free / 2, top + 12, number, "inside"))
    chart.labels.append(Label(WIDTH - _RIGHT, chart.height - 6, f"{length * 1e3:.0f} ms", "end"))
    return chart
