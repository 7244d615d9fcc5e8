# SPDX-License-Identifier: Apache-2.0
"""Pictures of plans: shapes are where the numbers say, and text is escaped."""

import pytest

from gossamer.planner import Costs, PipelineSpec, simulate
from gossamer.planner.explaining import scaling_chart
from gossamer.report.charts import WIDTH
from gossamer.report.charts.timeline import timeline_chart
from gossamer.report.page import render_svg


def test_a_timeline_has_a_bar_for_every_action():
    one = [1.0] * 3
    played = simulate(PipelineSpec("1f1b", 3, 4), Costs(one, one, one))
    chart = timeline_chart(played.spans, "one step", ranks=3)
    work = [bar for bar in chart.bars if bar.kind != "track"]
    assert len(work) == 3 * 4 * 2
    assert max(bar.x + bar.width for bar in work) <= WIDTH
    first = min(work, key=lambda bar: bar.x)
    assert first.title == "forward 0, stage 0: 1e+03 ms"


def test_perfect_scaling_is_a_straight_line():
    chart = scaling_chart("t", {"dense": [(2, 8.0), (4, 4.0), (8, 2.0)], "samo": [(2, 1.0)]})
    (scaling,) = (
        line.points for line in chart.lines if len(line.points) == 3 and line.kind != "axis"
    )
    (x0, y0), (x1, y1), (x2, y2) = scaling
    assert (x1 - x0, y1 - y0) == pytest.approx((x2 - x1, y2 - y1))
    assert len(chart.bars) == 4


def test_a_chart_as_a_file_is_escaped():
    text = render_svg(scaling_chart("<b> & co", {"a<b": [(1, 1.0), (2, 1.0)]}))
    assert "<b>" not in text
    assert "a&lt;b, 2 ranks: 1 s" in text
    assert text.lstrip().startswith("<svg")
