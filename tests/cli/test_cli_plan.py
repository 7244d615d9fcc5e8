# SPDX-License-Identifier: Apache-2.0
"""`gossamer plan` on the command line."""

import json

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from gossamer.cli.main import main
from gossamer.patterns.attention.key_rules import parse_key_rules
from gossamer.running.decoder import DecoderEngine


def test_a_plan_is_one_json_document(capsys):
    assert main(["plan", "gpt3-xl", "--cluster", "dgx-like", "--batch", "256", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["forecast"] is True
    assert [state["state"] for state in document["states"]][:2] == [
        "dense, mixed precision",
        "samo",
    ]
    best = document["states"][0]["best"]
    assert best["data"] * best["pipeline"] * best["shard"] == 128
    assert best["memory"]["total"] <= 80e9


def test_the_table_says_that_it_is_a_forecast_and_why(capsys, tmp_path):
    page = tmp_path / "plan.html"
    arguments = [
        "plan",
        "train-gpt",
        "--state",
        "dense fp32",
        "--state",
        "fp32",
        "--out",
        str(page),
    ]
    assert main([*arguments, "--schedule", "message-driven"]) == 0
    shown = capsys.readouterr().out
    assert "A forecast: nothing was run." in shown
    assert "Next grid" in shown
    assert page.read_text().startswith("<!doctype html>")


def test_a_bad_cluster_is_refused_before_torch_is_there(tmp_path):
    import subprocess
    import sys

    bad = tmp_path / "bad.yaml"
    bad.write_text("gossamer-cluster: 1\nnodes: -1\n")
    probe = (
        "import sys; from gossamer.cli.main import main;"
        f"code = main(['plan', 'gpt3-xl', '--cluster', {str(bad)!r}]);"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stdout == "2 False\n", done.stderr
    assert "bad.yaml:2 nodes: must be at least 1, got -1." in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "RECIPE_OR_MODEL is missing"),
        (["gpt3-xl", "--cluster", "nowhere"], 2, "Built in: dgx-like, summit, workstations"),
        (["gpt3-xl", "--ranks", "9"], 2, "the cluster has 4, got 9"),
        (["wanda-50"], 2, "carries out one stage, train"),
        (["gpt3-xl", "--sparsity", "90"], 2, "Write 0.9"),
    ],
)
def test_mistakes_are_told_in_a_sentence(arguments, code, words, capsys):
    assert main(["plan", *arguments]) == code
    assert words in capsys.readouterr().err


def test_calibration_never_overwrites(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("")
    assert main(["plan", "--calibrate", str(tmp_path / "mine.yaml")]) == 2
    assert "is not overwritten" in capsys.readouterr().err


@pytest.mark.slow
def test_calibration_writes_a_cluster_that_a_plan_reads(tmp_path, capsys):
    mine = tmp_path / "mine.yaml"
    assert main(["plan", "--calibrate", str(mine), "-q"]) == 0
    assert main(["plan", "train-gpt", "--cluster", str(mine), "--json"]) == 0
    text = capsys.readouterr().out
    assert '"figures": "measured"' in text


def test_memory_of_keys_is_what_a_session_takes(capsys, tmp_path):
    config = LlamaConfig(
        vocab_size=20, hidden_size=64, intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "llama")
    assert main(["plan", str(tmp_path / "llama"), "--keys", "640", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["keys"]
    engine = DecoderEngine(model, context=640)
    for row in found:
        keys = parse_key_rules(row["attention"], row["keys"])
        assert row["size"] == engine.with_keys(keys).key_bytes
    assert found[0]["per_token"] == 2 * 3 * 2 * 16 * 4
    assert main(["plan", "gpt3-xl", "--keys", "2048"]) == 0
    shown = capsys.readouterr().out
    assert "bounded" in shown
    assert "int4" in shown
    assert main(["plan", "nowhere", "--keys", "10"]) == 2
