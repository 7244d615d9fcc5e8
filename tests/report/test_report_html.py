# SPDX-License-Identifier: Apache-2.0
"""report.html: self-contained, escaped, complete, small."""

import re
from html.parser import HTMLParser

import pytest
from report_samples import HOSTILE, page, row

from gossamer.report import write_html
from gossamer.report.charts import Curve
from gossamer.report.charts.layer_charts import curve_chart, sparsity_chart, time_chart
from gossamer.report.charts.screens import shorten
from gossamer.report.page import MAX_LAYERS, render_html

LOADING = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"}


class Reader(HTMLParser):
    """Tags, attributes and visible text of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.texts = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        if self.tags and self.tags[-1] != "style" and data.strip():
            self.texts.append(data.strip())

    @property
    def text(self):
        return "\n".join(self.texts)


def test_page_loads_nothing_and_runs_nothing():
    html = render_html(page())
    read = Reader(html)
    assert not {"script", "link", "iframe", "img", "object", "embed"} & set(read.tags)
    names = {name for name, _ in read.attributes}
    assert not names & LOADING
    assert not [name for name in names if name.startswith("on")]
    assert not re.search(r"https?:|//[a-z]|url\(|@import", html)
    policy = dict(read.attributes)["content"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_everything_on_the_page_is_there():
    text = Reader(render_html(page("encoder.layer"))).text
    for part in (
        *("title encoder.layer", "lead encoder.layer", "0.970", "4.0 KiB", "1.0 KiB", "4.00x"),
        *("5.00x", "0.50x", "-0.020", "not measured", "note one encoder.layer", "note two"),
        *("table encoder.layer", "note encoder.layer", "curve encoder.layer", "Zeros per layer"),
        *("Microseconds of each layer alone, 1 token", "stays dense"),
        *("encoder.layer.2", "64x32", "90.0 %", "step encoder.layer", "outcome encoder.layer"),
        *("cpu encoder.layer", "dense int8", "4.00x dense", "smaller (bytes on disk)"),
        *("slower (ms, batch 1)", "faster (ms, batch 128)"),
    ):
        assert part in text, part


def test_hostile_names_are_shown_and_do_nothing():
    html = render_html(page(HOSTILE))
    read = Reader(html)
    assert "script" not in read.tags
    assert "img" not in read.tags
    assert "<script" not in html
    assert "evil" not in "".join(
        str(value) for _, value in read.attributes if value and "<" not in value
    )
    assert HOSTILE in read.text
    assert "49" not in read.text.replace("490", "")


def test_worse_rows_are_marked():
    html = render_html(page())
    rows = re.findall(r'<tr( class="worse")?><td>(.*?)</td>', html)
    assert [
        'class="worse"' in mark for mark, name in rows if name in ("accuracy", "ms, batch 1")
    ] == [
        True,
        True,
    ]
    assert not [name for mark, name in rows if mark and name in ("bytes on disk", "ms, batch 128")]


def test_a_model_with_thousands_of_layers_gives_a_small_page():
    layers = [row(f"model.layers.{i}.self_attn.q_proj", n) for i in range(5000) for n in (1, 128)]
    html = render_html(page(layers=layers))
    assert len(html) < 2_000_000
    assert f"{5000 - MAX_LAYERS} more layers are in report.json" in html
    assert html.count('<tr class="layer">') == 2 * MAX_LAYERS


@pytest.mark.parametrize("layers", [[], [row("x", None, "dense", None, None)]])
def test_a_model_without_timed_layers_still_has_a_page(layers):
    html = render_html(page(layers=layers))
    assert "Microseconds" not in html
    assert ('id="layers"' in html) == bool(layers)


def test_write_replaces_the_file_as_a_whole(tmp_path):
    path = tmp_path / "new" / "report.html"
    write_html(page("one"), path)
    assert write_html(page("two"), path) == path
    assert "title two" in path.read_text()
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_bars_are_as_long_as_what_they_show():
    rows = [row("a", dense_us=100.0, sparse_us=50.0), row("b", dense_us=20.0, sparse_us=10.0)]
    dense_a, sparse_a, dense_b, _ = time_chart(rows, 128).bars
    assert sparse_a.width == pytest.approx(dense_a.width / 2)
    assert dense_b.width == pytest.approx(dense_a.width / 5)
    track, bar = sparsity_chart(rows[:1]).bars
    assert bar.width == pytest.approx(track.width * 0.9)


@pytest.mark.parametrize(
    "points", [(), ((0.0, 1.0),), ((0.0, 1.0), (1.0, 1.0)), ((0.0, float("nan")), (1.0, 2.0))]
)
def test_curves_without_range_do_not_divide_by_zero(points):
    chart = curve_chart(Curve("c", points, ((0.0, "mark"),)))
    assert "nan" not in "".join(line.path() for line in chart.lines)


@pytest.mark.parametrize("length", [1, 46, 47, 500])
def test_long_names_are_cut_in_the_middle(length):
    name = "ab" * length
    short = shorten(name)
    assert len(short) <= 46
    assert short == name or (short.startswith("ab") and short.endswith("ab") and "..." in short)
