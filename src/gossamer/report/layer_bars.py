# SPDX-License-Identifier: Apache-2.0
"""A pair of bars per layer: its time inside a whole forward, dense and sparse; sums at the end."""

from gossamer.report.charts import WIDTH, Bar, Chart, Label, shorten
from gossamer.running.layers.layer_times import LayerTime, LayerTimes

_LEFT, _RIGHT = 330.0, 110.0
_ROW, _BAR = 30.0, 10.0


def layer_bars(times: LayerTimes) -> Chart:
    """Layers in order, then their sum and the whole forward; all on one scale."""
    rows = [
        *times.layers,
        LayerTime("all layers", times.dense_sum_ms, times.sparse_sum_ms),
        LayerTime("whole forward", times.dense_ms, times.sparse_ms),
    ]
    longest = max(max(row.dense_ms or 0.0, row.sparse_ms or 0.0) for row in rows) or 1.0
    chart = Chart(
        "Milliseconds of each layer inside a forward",
        len(rows) * _ROW + 4,
        legend=(("dense", "dense"), ("sparse", "sparse")),
    )
    span = WIDTH - _LEFT - _RIGHT
    for index, row in enumerate(rows):
        top = index * _ROW + 4
        chart.labels.append(Label(_LEFT - 12, top + 14, shorten(row.name), "end", row.name))
        for offset, kind, ms in ((0.0, "dense", row.dense_ms), (_BAR + 1, "sparse", row.sparse_ms)):
            if ms is not None:
                title = f"{row.name}: {kind} {ms:.3f} ms"
                width = span * ms / longest
                chart.bars.append(Bar(_LEFT, top + offset, width, _BAR, kind, title))
        chart.labels.append(Label(WIDTH - _RIGHT + 10, top + 14, _text(row), "value"))
    return chart


def _text(row: LayerTime) -> str:
    if row.dense_ms and row.sparse_ms:
        return f"{row.dense_ms / row.sparse_ms:.2f}x"
    ms = row.dense_ms if row.sparse_ms is None else row.sparse_ms
    return f"{ms or 0.0:.3f} ms"
