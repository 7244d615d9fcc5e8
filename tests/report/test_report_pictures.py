# SPDX-License-Identifier: Apache-2.0
"""Pictures: round ticks, labels apart, layers by block, and every figure once with one value."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import row, searched

from gossamer.report.charts.beside import Spot, labels_beside, text_width
from gossamer.report.charts.layer_charts import time_chart
from gossamer.report.charts.plot import ticks
from gossamer.report.charts.rows import split_names
from gossamer.report.page import render_html
from gossamer.search.page import search_page
from gossamer.search.picture import front_chart


@pytest.mark.parametrize(
    ("low", "high", "most", "found"),
    [
        (0.0, 10.0, 5, (0, 2, 4, 6, 8, 10)),
        (0.0, 0.115, 4, (0, 0.05, 0.1)),
        (-0.003, 0.02, 5, (0, 0.005, 0.01, 0.015, 0.02)),
        (3.0, 3.0, 5, (3.0,)),
        (1.0, 0.0, 5, (1.0,)),
        (0.1, 0.3, 2, (0.1, 0.2, 0.3)),
    ],
)
def test_ticks_are_round(low, high, most, found):
    assert ticks(low, high, most) == pytest.approx(found, abs=1e-12)


@given(st.floats(-1e4, 1e4), st.floats(1e-3, 1e6), st.integers(1, 12))
def test_ticks_lie_on_the_axis_and_are_few(low, span, most):
    found = ticks(low, low + span, most)
    assert 1 <= len(found) <= most + 1
    assert all(low - 1e-6 * span <= x <= low + span * (1 + 1e-6) for x in found[1:])
    assert list(found) == sorted(set(found))


def boxes(labels):
    return [(x.x, x.y - 11, x.x + text_width(x.text), x.y + 4) for x in labels]


def touch(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


ROOM = (60.0, 20.0, 900.0, 320.0)
SPOTS = st.lists(
    st.builds(
        Spot,
        st.floats(70, 890),
        st.floats(30, 310),
        st.floats(2, 10),
        st.text("ab", min_size=1, max_size=24),
    ),
    max_size=12,
)


@given(SPOTS)
def test_no_label_covers_another_or_a_dot(spots):
    placed = labels_beside(spots, ROOM)
    if placed is None:
        # Twelve short texts always have room in so large a box.
        pytest.fail("no room")
    labels, leaders = placed
    assert [label.text for label in labels] == [spot.text for spot in spots]
    texts = boxes(labels)
    for place, text in enumerate(texts):
        assert not any(touch(text, other) for other in texts[:place])
        assert not any(touch(text, spot.box) for spot in spots)
        left, top, right, bottom = text
        assert max(ROOM[0] - left, ROOM[1] - top, right - ROOM[2], bottom - ROOM[3]) <= 1e-9
    assert len(leaders) <= len(labels)


def test_no_spots_and_no_room():
    assert labels_beside([], ROOM) == ([], [])
    assert labels_beside([Spot(5, 5, 3, "too long for this")], (0, 0, 20, 20)) is None


@pytest.mark.parametrize("count", [1, 2, 12, 30])
@pytest.mark.parametrize("narrow", [False, True])
def test_every_model_of_a_front_is_named_once(count, narrow):
    result, limits = searched(count)
    chart = front_chart(result, limits)
    chart = chart.narrow if narrow else chart
    dots = [bar.title for bar in chart.bars]
    named = [label.title for label in chart.labels if label.title]
    assert sorted(named) == sorted(dots)
    assert len(dots) == count
    shown = [label for label in chart.labels if label.title]
    assert not any(
        touch(one, other) for k, one in enumerate(boxes(shown)) for other in boxes(shown[:k])
    )
    assert [label.text for label in chart.labels if label.kind == "limit"] == ["limit: 2 % lost"]
    # Shapes differ, not only colours.
    for bar in chart.bars:
        assert (bar.corner == bar.width / 2) == ("sparse" in bar.kind)


def test_limits_of_time_are_named_too():
    result, limits = searched(5, max_ms=20.0)
    texts = [label.text for label in front_chart(result, limits).labels]
    assert {"limit: 2 % lost", "limit: 20 ms"} <= set(texts)


def test_layers_stand_under_their_block():
    names = ["embed", *(f"encoder.layer.{i}.{part}" for i in (0, 1) for part in ("q", "k")), "head"]
    assert split_names(names) == [
        ("", "embed"),
        *((f"encoder.layer.{i}", part) for i in (0, 1) for part in ("q", "k")),
        ("", "head"),
    ]
    chart = time_chart([row(name) for name in names], 128)
    for each in (chart, chart.narrow):
        blocks = [label.text for label in each.labels if label.kind == "block"]
        assert blocks == ["encoder.layer.0", "encoder.layer.1"]
        assert max(bar.x + bar.width for bar in each.bars) <= each.width
    dense, sparse = chart.bars[:2]
    assert dense.height < sparse.height


@pytest.mark.parametrize(
    "names", [[], ["0", "2"], ["layers.1", "layers.2"], ["a.0.x", "b.0.x"], ["a.0.x", "b", "a.0.y"]]
)
def test_a_block_of_one_layer_is_none(names):
    assert split_names(names) == [("", name) for name in names]


def test_one_figure_has_one_value_on_a_page():
    result, limits = searched(12)
    html = render_html(search_page(result, limits, "shrunk"))
    text = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    for point in result.points:
        told = re.findall(rf"{re.escape(point.name)}: ([\d.]+) ms", text)
        cells = re.findall(rf"<td>{re.escape(point.name)}</td>(.*?)</tr>", text, re.DOTALL)
        assert len(cells) == 1
        assert set(told) == {f"{point.ms:.2f}"}
        assert f"<td>{point.ms:.2f}</td>" in cells[0]
        # What is said of time and of speed is one statement: the dense model's time over it.
        assert point.ms * point.speedup == pytest.approx(result.points[0].ms * 1.25)
    ratio = f"{result.chosen.speedup:.2f}x"
    assert text.count(ratio) >= 2
