# SPDX-License-Identifier: Apache-2.0
"""What `benchmarks/encoder.py` derives from its times."""

import pytest
import torch

from gossamer.report.page import render_html
from support.encoder_cases import BERT, MINILM, Shape, random_encoder
from support.encoder_page import Row, case_table, encoder_page, judge
from support.encoder_roof import Roof, least_ms, work_of

ROOF = Roof(fma_gflops=100.0, int8_gops=400.0, bandwidth_gbs=10.0)


def row(engine, precision, sparsity, ms, threads=1):
    return Row("MiniLM-L6", 1, threads, engine, precision, sparsity, ms, 1e-6, least_ms=ms / 2)


ROWS = [
    row("torch", "fp32", 0.0, 50.0),
    row("ONNX Runtime", "fp32", 0.0, 40.0),
    row("gossamer", "fp32", 0.5, 20.0),
    row("gossamer", "fp32", 0.9, 8.0),
    row("gossamer", "int8", 0.9, 8.0),
    row("torch", "fp32", 0.0, 30.0, threads=2),
    row("gossamer", "fp32", 0.9, 4.0, threads=2),
    row("gossamer", "int8", 0.9, 6.0, threads=2),
]


def test_ratios_goals_and_verdicts():
    judged = judge(ROWS)
    assert [r.ratio for r in judged] == pytest.approx([0.8, 1, 2, 5, 5, 1, 7.5, 5])
    assert [r.goal for r in judged] == [None, None, None, 4.2, 6.0, None, None, None]
    assert [r.threads_ratio for r in judged[5:]] == [None, pytest.approx(2), pytest.approx(4 / 3)]
    assert [r.verdict for r in judged] == ["", "", "", "met", "missed", "", "met", "missed"]
    assert judged[3].to_dict()["of_roof"] == pytest.approx(0.5)


def test_tables_and_page_hold_every_row():
    judged = judge(ROWS)
    assert case_table(judged[:5]).row_count == 5
    machine = {"cpu": "a", "kernels": "b"}
    html = render_html(
        encoder_page({"machine": machine, "versions": {"ONNX Runtime": "1"}}, judged)
    )
    assert html.count("MiniLM-L6, batch 1, 128 tokens, 1 thread") >= 2
    assert "5.00x" in html


def test_weights_of_the_shapes():
    assert work_of(MINILM, 1, 128).weights == 10_616_832
    assert work_of(BERT, 8, 128).tokens == 1024


def test_the_roof_is_the_longer_of_arithmetic_and_memory():
    work = work_of(Shape("one", 10, 10, 1, 1), 1, 1)
    assert work.weights == 600
    assert least_ms(work, ROOF, "fp32", 0.0, 1) == pytest.approx(600 * 4 / 10e6)
    many = work_of(Shape("one", 10, 10, 1, 1), 1000, 1)
    attention = 4 * 1000 * 10
    assert least_ms(many, ROOF, "fp32", 0.5, 2) == pytest.approx((2 * 300 * 1000 + attention) / 2e8)
    products, mixing = 2 * 600 * 1000 / 400e6, attention / 100e6
    assert least_ms(many, ROOF, "int8", 0.0, 1) == pytest.approx(products + mixing)


def test_masks_are_inside_each_other_and_weights_are_equal():
    tiny = Shape("tiny", 8, 16, 1, 2)
    half, most = (random_encoder(tiny, sparsity) for sparsity in (0.5, 0.9))
    ours, theirs = (m.encoder.layer[0].intermediate.dense.weight for m in (half, most))
    assert 0.3 < (ours == 0).float().mean() < 0.7
    assert torch.equal(theirs[theirs != 0], ours[theirs != 0])
