# SPDX-License-Identifier: Apache-2.0
"""`gossamer shrink` on a tiny encoder in a Hugging Face directory."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel

import gossamer
from gossamer.search import candidates, forecast, rungs, shrinking, trial

WORDS = ("red", "green", "blue", "cat", "dog", "bird", "runs", "sleeps", "eats", "fast")


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    half = candidates.Mask("unstructured", 0.5)
    monkeypatch.setitem(shrinking.shrink.__kwdefaults__, "masks", (half,))
    monkeypatch.setattr(rungs, "RUNGS", ((2, 1),))
    monkeypatch.setattr(rungs, "_TOKEN_STEPS", 2)
    monkeypatch.setattr(trial, "_TIMED_SECONDS", 0.01)
    monkeypatch.setattr(forecast, "_TIMED_SECONDS", 0.01)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=12, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=128, initializer_range=0.5,
    )  # fmt: skip
    folder = tmp_path / "model"
    BertModel(config).save_pretrained(folder)
    vocabulary = {word: i for i, word in enumerate(("[PAD]", "[UNK]", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def data(tmp_path):
    generator = torch.Generator().manual_seed(0)
    lines = [
        " ".join(WORDS[i] for i in torch.randint(0, 10, (5,), generator=generator))
        for _ in range(60)
    ]
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(lines))
    return path


def test_shrink_saves_the_model_and_the_report(gossamer_cli, model, data, tmp_path):
    out = tmp_path / "small"
    ran = gossamer_cli(
        "shrink", model, "--data", data, "-o", out, "--max-loss", "50%", "--max-bytes", "50KB",
        "--no-engines", "--also", model, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.document["met"] is True
    names = {f"{point['candidate']} {point['precision']}" for point in ran.document["points"]}
    assert {"dense fp32", "dense-int8 int8", "oneshot-50 int8", "model fp32"} <= names
    gossamer.load(out)
    assert (out / "tokenizer.json").exists()
    page = (tmp_path / "small.work" / "report.html").read_text()
    assert "Everything that was tried" in page
    assert "<svg" in page


def test_staying_dense_is_a_success(gossamer_cli, model, data, tmp_path):
    ran = gossamer_cli(
        "shrink",
        model,
        "--data",
        data,
        "-o",
        tmp_path / "o",
        "--max-loss",
        "0.00001%",
        "--no-engines",
    )
    assert ran.code == 0, ran.err
    assert "Stay dense" in ran.out


def test_an_impossible_latency_is_code_four(gossamer_cli, model, data, tmp_path):
    ran = gossamer_cli(
        "shrink",
        model,
        "--data",
        data,
        "-o",
        tmp_path / "o",
        "--max-latency",
        "0.001us",
        "--no-engines",
    )
    assert ran.code == 4
    assert "Nearest" in ran.out
    assert (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        (
            "--max-loss",
            "1 point",
            "'1 point' is no number; it must be in (0, 10], as in 0.01 or 1%",
        ),
        ("--max-latency", "5", "units 'ms', 's', 'us'"),
        ("--max-bytes", "0MB", "must be positive"),
        ("--budget", "..min", "no number"),
    ],
)
def test_bad_quantities_are_named(gossamer_cli, model, data, tmp_path, option, value, said):
    ran = gossamer_cli("shrink", model, "--data", data, "-o", tmp_path / "o", option, value)
    assert ran.code == 2
    assert said in ran.err


def test_your_own_batches_and_metric(gossamer_cli, tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def batches():\n"
        "    torch.manual_seed(0)\n"
        "    return [torch.randn(8, 64) for _ in range(8)]\n"
        "def spread(model, batches):\n"
        "    with torch.no_grad():\n"
        "        return float(sum(batch.run(model).std() for batch in batches))\n"
    )
    ran = gossamer_cli(
        "shrink", "zoo:mlp", "--data", "mine:batches", "--metric", "mine:spread", "-o", "small",
        "--no-engines", "--max-loss", "90%", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.document["quality_name"] == "spread"
    gossamer.load(tmp_path / "small")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data", "nowhere:batches"], "--data nowhere:batches: the module 'nowhere' cannot"),
        (["--data", "a.txt", "--metric", "x"], "--metric x: expected module:function"),
    ],
)
def test_own_functions_that_are_not_there(gossamer_cli, model, tmp_path, options, said):
    ran = gossamer_cli("shrink", model, *options, "-o", tmp_path / "o")
    assert ran.code == 2
    assert said in ran.err
