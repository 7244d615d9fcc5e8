# SPDX-License-Identifier: Apache-2.0
"""What the benchmark scripts share: figures that follow from times, and the talk with peers."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dlmc import read_mask
from gossamer.patterns import parse_pattern
from gossamer.report.page import render_html
from gossamer.running.bench import BenchRow
from support import cases, peer
from support.contenders import agrees, run_race
from support.roofline import roofline_page
from support.summary import Cell, claims_of, lines_of

SERVE = Path(__file__).parents[2] / "benchmarks" / "peers"
PEER = f"""
import sys, time
sys.path.insert(0, {str(SERVE)!r})
from serve import forward_only, serve

def prepare(weight, x, task, threads):
    print("a banner")
    forward_only(task)
    if weight.shape[0] == 1:
        raise ValueError("one row is too few")
    if weight.shape[0] == 2:
        sys.exit(3)
    def run():
        time.sleep(0.001)
        return x @ weight.T
    return run

serve(prepare)
"""


def cell(group, pattern, ratio, tokens=128, column="50 %", ceiling=math.nan):
    return Cell(
        group,
        column,
        BenchRow(
            rows=768,
            columns=768,
            tokens=tokens,
            sparsity=0.5,
            pattern=pattern,
            format="",
            kernel=pattern,
            kernels="avx2",
            threads=1,
            dense_us=1000.0,
            sparse_us=1000.0 / ratio,
            ceiling_gflops=ceiling,
        ),
    )


def test_a_line_is_the_worst_and_median_of_its_cases():
    ratios = {128: 2.0, 1024: 1.6, 512: 1.7}
    (line,) = lines_of([cell(cases.NM, "8:16", r, t) for t, r in ratios.items()])
    assert (line.worst, line.median, line.goal) == pytest.approx((1.6, 1.7, 1.6))
    assert line.verdict == "met"
    (line,) = lines_of([cell(cases.NM, "8:16", 1.59)])
    assert line.verdict == "missed"
    near = cell(cases.NM, "8:16", 1.0, ceiling=cell(cases.NM, "8:16", 1.0).row.kept_gflops / 0.9)
    assert lines_of([near])[0].verdict == "met"


def test_only_the_best_pattern_of_some_groups_is_judged():
    lines = lines_of([cell(cases.BLOCK, "block:4x4", 1.9), cell(cases.BLOCK, "block:16x1", 2.1)])
    assert [(line.goal, line.verdict) for line in lines] == [(None, ""), (2.0, "met")]


def test_claims_compare_within_one_case():
    column = "75-80 %"
    cells = [
        cell(cases.UNSTRUCTURED, "unstructured", 4.0, 128, column),
        cell(cases.UNSTRUCTURED, "unstructured", 3.0, 1024, column),
        cell(cases.PEER, "DeepSparse 1.8", 2.0, 128, column),
        cell(cases.PEER, "DeepSparse 1.8", 1.0, 1024, column),
    ]
    ((claim, worst, pattern),) = claims_of(cells)
    assert (claim.peer, worst, pattern) == ("DeepSparse 1.8", pytest.approx(2.0), "unstructured")
    assert claims_of(cells[:2]) == []


@pytest.mark.parametrize("shape", cases.SHAPES)
def test_every_pattern_fits_every_shape_and_its_column(shape):
    for column in cases.COLUMNS:
        for text in (text for texts in column.patterns.values() for text in texts):
            pattern = parse_pattern(text)
            pattern.check_shape(shape)
            density = pattern.fixed_density
            assert density is None or abs(1 - density - column.sparsity) <= 0.051


def test_the_page_holds_a_dot_and_a_percentage_per_cell():
    column = "87.5-90 %"
    cells = [
        cell(cases.UNSTRUCTURED, "unstructured", 6.0, 128, column, 100.0),
        cell(cases.BLOCK, "block:4x4", 7.0, 1024, column, 100.0),
    ]
    document = {"machine": {"cpu": "x"}, "ceilings_gflops": {"fma": 103.0, "panel": 93.0}}
    document |= {"bandwidth_gbs": 11.0, "claims": []}
    page = render_html(roofline_page(document, cells, lines_of(cells)))
    assert page.count('height="6.0"') == len(cells)
    for one in cells:
        assert f"{one.row.ceiling_fraction:.0%}" in page
    assert "panel 93" in page
    assert "memory 11 GB/s" in page


def test_smtx_masks():
    assert read_mask("2, 3, 3\n0 1 3\n2 0 1\n").tolist() == [
        [False, False, True],
        [True, True, False],
    ]
    assert not read_mask("2, 3, 0\n0 0 0\n\n").any()


def test_slow_contenders_sit_out_and_the_rest_goes_on():
    calls = {"slow": 0, "fast": 0}

    def contender(name, seconds):
        def run():
            calls[name] += 1
            return seconds

        return run

    times, rates = run_race(
        {"slow": contender("slow", 2.0), "fast": contender("fast", 1.0)}, (), 0.0, rounds=5
    )
    assert times == {"slow": 2e6, "fast": 1e6}
    assert calls == {"slow": 2, "fast": 2}
    assert rates == {}


def test_agreement_depends_on_the_precision():
    y = torch.ones(4, 4)
    assert agrees(y * 1.01, y, "int8")
    assert not agrees(y * 1.01, y, "fp32")
    assert not agrees(y * math.nan, y, "int8")


@pytest.fixture
def peers(tmp_path, monkeypatch):
    """One peer, run by this interpreter."""
    (tmp_path / "run_scipy.py").write_text(PEER)
    monkeypatch.setattr(peer, "_SCRIPTS", tmp_path)
    python = tmp_path / "peers" / "scipy" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with peer.Peers(tmp_path / "peers", 2) as running:
        yield running


def test_a_peer_answers_and_missing_ones_are_named(peers, capsys):
    w, x = torch.randn(3, 4), torch.randn(5, 4)
    ((one, y),) = peers.load(w, x)
    np.testing.assert_allclose(y, (x @ w.T).numpy(), rtol=1e-5, atol=1e-6)
    assert 0.001 <= one.turn() < 1.0


@pytest.mark.parametrize(
    ("rows", "task", "reason"),
    [(1, "forward", "one row is too few"), (2, "forward", "has ended"), (3, "step", "task 'step'")],
)
def test_a_peer_that_fails_is_left_out(peers, capsys, rows, task, reason):
    assert peers.load(torch.randn(rows, 4), torch.randn(5, 4), task) == []
    assert reason in capsys.readouterr().err
    assert peers.load(torch.randn(3, 4), torch.randn(5, 4)) == []
