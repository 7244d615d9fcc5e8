# SPDX-License-Identifier: Apache-2.0
"""card.md and the comparison table."""

import dataclasses
import json
import re

import pytest
from report_samples import HOSTILE, comparison, report

from gossamer.errors import InputError
from gossamer.report import Comparison, Figure, describe_machine
from gossamer.report.card import escape, render_card
from gossamer.report.page import tiles

GOLDEN = """\
# pruned

Pruned from base: 90.00% zeros in 1 layers, 80.00% of all parameters.

## Measured

|  | dense | pruned | dense int8 | ratio |
|---|---|---|---|---|
| accuracy | 0.990 | 0.970 | not measured | \\-0.020 |
| bytes on disk | 4.0 KiB | 1.0 KiB | 2.0 KiB | 4.00x |
| ms, batch 1 | 1.000 | 2.000 | not measured | 0.50x |
| ms, batch 128 | 20.0 | 4.000 | 10.0 | 5.00x |

Machine: cpu Test CPU; threads 1.

## Method

- sparsity: 0.9

## Limits

- only a test
- Data and licence are those of the base model; they are not stated here.

Load with `gossamer.load(path)`, then `gossamer.compile(model)` to run it.
"""


def card(text="base"):
    return render_card(
        title="pruned" if text == "base" else text,
        base=text,
        method={"sparsity": "0.9"} if text == "base" else {text: text},
        report=report(text),
        comparison=comparison(),
        machine={"cpu": "Test CPU" if text == "base" else text, "threads": "1"},
        limits=("only a test",) if text == "base" else (text,),
    )


def test_card_is_the_golden_text():
    assert card() == GOLDEN


@pytest.mark.parametrize("text", [HOSTILE, "a\n# heading\n| x | y |", "[x](http://evil)", "`code`"])
def test_card_escapes_markup(text):
    made = card(text)
    assert "<" not in made.replace("&lt;", "")
    assert "](http" not in made
    assert "\n# heading" not in made
    rows = [line for line in made.splitlines() if line.startswith("|")]
    assert len(rows) == 6
    assert len(re.findall(r"(?<!\\)`", made)) == 4


def test_escape_keeps_plain_text():
    assert escape("encoder.layer.0 at 90 %, 2:4") == "encoder.layer.0 at 90 %, 2:4"


def test_cells_and_gains():
    table = comparison()
    assert table.cells()[0] == ["", "dense", "pruned", "dense int8", "ratio"]
    assert table.cells()[2] == ["bytes on disk", "4.0 KiB", "1.0 KiB", "2.0 KiB", "4.00x"]
    score, size, slow, fast = table.figures
    assert score.gain(1) is None
    assert size.gain(2) == 2.0
    assert [figure.is_worse(1) for figure in (score, size, slow, fast)] == [
        True,
        False,
        True,
        False,
    ]
    assert score.change(2) == ""


def test_comparison_is_plain_data():
    data = json.loads(json.dumps(comparison().to_dict()))
    assert data["models"] == ["dense", "pruned", "dense int8"]
    assert data["figures"][1]["gains"] == [1.0, 4.0, 2.0]
    assert data["figures"][0]["values"] == [0.99, 0.97, None]


def test_a_figure_with_missing_values_is_refused():
    with pytest.raises(InputError, match="needs 2 values, got 1"):
        Comparison(("dense", "pruned"), (Figure("ms", "ms", (1.0,)),))


@pytest.mark.parametrize("values", [(0.0, 0.0), (1.0, 0.0), (None, 1.0), (1.0, None), (0.0, 5.0)])
def test_zero_and_missing_values_do_not_divide(values):
    figure = Figure("bytes", "bytes", values)
    assert figure.gain(1) in (None, 0.0)
    assert figure.change(1) in ("", "0.00x")


def test_machine_names_versions_and_no_host():
    machine = describe_machine()
    assert set(machine) == {
        *("cpu", "kernels", "threads", "system", "python", "torch", "numpy", "gossamer"),
    }
    assert all(machine.values())


@pytest.mark.parametrize(("pruned", "good"), [(0.99, True), (0.985, True), (0.97, False)])
def test_a_lost_point_of_quality_is_shown_as_a_loss(pruned, good):
    table = Comparison(("dense", "pruned"), (Figure("accuracy", "score", (0.99, pruned)),))
    (tile,) = tiles(table)
    assert tile.good is good
    assert tile.text == "accuracy; dense: 0.990"


def test_figures_that_were_not_measured_make_no_headline():
    figures = (Figure("quality", "score", (None, None)), Figure("ms", "ms", (2.0, None)))
    assert tiles(Comparison(("dense", "pruned"), figures)) == []


BUSY = "busy machine: 4.0 other programs on 2 cores"


def test_times_of_a_busy_machine_are_shown_with_their_doubt_and_stay_out_of_cards():
    doubtful = Comparison(
        ("dense", "pruned"),
        (
            Figure("bytes", "bytes", (4096, 1024)),
            Figure("ms per forward", "ms", (45.17, 1.0), BUSY),
        ),
    )
    shown = doubtful.cells()[2]
    assert shown == [f"ms per forward [{BUSY}]", "45.2", "1.000", "45.17x"]
    card = render_card(
        title="a",
        base="b",
        method={},
        report=report(),
        comparison=doubtful,
        machine={},
        limits=(),
    )
    assert "45." not in card
    assert "not measured" in card
    assert "4.0 KiB" in card
    assert escape(BUSY) in card
    # No headline, either.
    assert [tile.text for tile in tiles(doubtful)] == ["smaller (bytes)"]


def test_a_report_says_that_the_machine_was_busy():
    doubtful = dataclasses.replace(report(), doubt=BUSY)
    assert f"{BUSY}. Times taken meanwhile mean little." in str(doubtful)
    assert "busy" not in str(report())
