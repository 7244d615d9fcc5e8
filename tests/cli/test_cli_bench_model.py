# SPDX-License-Identifier: Apache-2.0
"""`gossamer bench model` on a tiny encoder; no other engine is needed."""

import pytest
import torch
from transformers import BertConfig, BertModel

import gossamer


@pytest.fixture
def artifact(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=60,
        max_position_embeddings=40,
    )
    model = BertModel(config)
    gossamer.sparsify(model, sparsity=0.8, ignore=["pooler"])
    return gossamer.save(model, tmp_path / "artifact")


def test_torch_and_gossamer_are_raced_and_missing_engines_named(artifact, tmp_path, gossamer_cli):
    page = tmp_path / "page.html"
    ran = gossamer_cli(
        *("bench", "model", artifact, "--batch", "1", "--batch", "3", "--sequence", "32"),
        *("--seconds", "0", "--peers", tmp_path, "--html", page, "--json"),
    )
    assert ran.code == 0, ran.err
    rows = ran.document["rows"]
    assert [(r["batch"], r["engine"], r["precision"]) for r in rows] == [
        (batch, engine, precision)
        for batch in (1, 3)
        for engine, precision in (("torch", "fp32"), ("gossamer", "fp32"), ("gossamer", "int8"))
    ]
    assert all(r["ms"] > 0 for r in rows)
    assert rows[1]["error"] < 1e-5 < rows[2]["error"] < 0.1
    assert ran.document["sparsity"] == pytest.approx(0.8, abs=0.01)
    assert ran.document["missing"] == ["ONNX Runtime", "OpenVINO", "DeepSparse"]
    assert "batch 3, ms" in page.read_text()


def test_a_table_says_what_was_raced(artifact, tmp_path, gossamer_cli):
    ran = gossamer_cli(
        *("bench", "model", artifact, "--batch", "1", "--precision", "int8", "--seconds", "0"),
        *("--sequence", "9", "--peers", tmp_path, "--against", "openvino"),
    )
    assert ran.code == 0, ran.err
    assert "Not installed: OpenVINO." in ran.out
    assert "80.0% of the weights" in ran.out


def test_sequences_longer_than_the_positions_are_refused(artifact, gossamer_cli):
    ran = gossamer_cli("bench", "model", artifact, "--sequence", "41")
    assert ran.code == 2
    assert "longer than its 40 positions" in ran.err
