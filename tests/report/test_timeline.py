# SPDX-License-Identifier: Apache-2.0
import json
from xml.etree import ElementTree

import pytest

from gossamer.report.charts.timeline import MAX_SPANS, timeline_chart
from gossamer.report.page import render_charts
from gossamer.training.distributed.pipeline import WorkSpan
from gossamer.training.distributed.pipeline.stage import most_held

SPANS = [
    WorkSpan(0, "forward", 0, 10.0, 10.1),
    WorkSpan(1, "forward", 0, 10.1, 10.2),
    WorkSpan(1, "input", 0, 10.2, 10.3),
    WorkSpan(0, "backward", 0, 10.3, 10.5),
    WorkSpan(1, "weight", 0, 10.3, 10.4),
]


def test_bars_stand_where_the_work_was():
    chart = timeline_chart(SPANS, "a step")
    tracks = [bar for bar in chart.bars if bar.kind == "track"]
    bars = [bar for bar in chart.bars if bar.kind != "track"]
    assert len(tracks) == 2
    assert [bar.title.split(":")[0] for bar in bars] == [
        "forward 0",
        "forward 0",
        "input 0",
        "backward 0",
        "weight 0",
    ]
    left, across = tracks[0].x, tracks[0].width
    assert bars[0].x == pytest.approx(left)
    assert bars[3].x == pytest.approx(left + 0.6 * across)
    assert bars[3].x + bars[3].width <= left + across
    assert bars[1].y == tracks[1].y > bars[0].y
    assert chart.legend == (("forward", "hue1"), ("backward", "hue3"), ("weights", "hue4"))


def test_charts_with_one_axis_compare():
    short = timeline_chart(SPANS, "", seconds=1.0)
    assert short.bars[2].width == pytest.approx(0.1 * short.bars[0].width - 0.5, rel=1e-3)
    assert short.labels[-1].text == "1000 ms"


def test_no_work_gives_an_empty_chart():
    assert timeline_chart([], "nothing").bars == []


def test_a_long_step_is_cut():
    many = [WorkSpan(0, "forward", k, float(k), k + 0.5) for k in range(MAX_SPANS + 5)]
    assert len(timeline_chart(many, "").bars) == MAX_SPANS + 1


def test_svg_is_well_formed_and_escaped():
    text = render_charts([timeline_chart(SPANS, "<b>1F1B & others</b>")] * 2)
    root = ElementTree.fromstring(text)  # noqa: S314  (our own)
    titles = [node.text for node in root.iter() if node.get("class") == "title"]
    assert titles == ["<b>1F1B & others</b>"] * 2


def test_held_from_forward_to_the_last_gradient():
    spans = [
        WorkSpan(0, "forward", 0, 0.0, 1.0),
        WorkSpan(0, "forward", 1, 1.0, 2.0),
        WorkSpan(0, "input", 0, 2.0, 3.0),
        WorkSpan(0, "forward", 2, 3.0, 4.0),
        WorkSpan(0, "weight", 0, 4.0, 5.0),
    ]
    assert most_held(spans, 0) == 3
    assert most_held(spans, 1) == 0


@pytest.mark.parametrize("spans", [[], SPANS])
def test_spans_travel_as_json(spans):
    assert [WorkSpan(*span) for span in json.loads(json.dumps(spans))] == spans
