# SPDX-License-Identifier: Apache-2.0
"""Models of families that no table of ours has: through the commands, from end to end."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch

import gossamer
from gossamer.io import read_beside
from gossamer.nn.layer_kinds import form_of

transformers = pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[1] / "running"))
sys.path.append(str(Path(__file__).parents[1] / "models"))
from cells import distance, inputs_of, make, outputs_of  # noqa: E402
from model_rows import ARCHITECTURES  # noqa: E402
from text_models import byte_tokenizer  # noqa: E402


def save_qwen3(folder, vocabulary=None):
    """A tiny Qwen3 with tied embeddings, in shards, with all that lies beside such a model."""
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = transformers.Qwen3Config(
        vocab_size=vocabulary or tokenizer.get_vocab_size(),
        hidden_size=36,
        intermediate_size=60,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=12,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.token_to_id("</s>"),
        bos_token_id=None,
    )
    model = transformers.Qwen3ForCausalLM(config).eval()
    model.save_pretrained(folder, max_shard_size="20KB")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return model


def test_a_qwen3_goes_in_and_comes_back(gossamer_cli, tmp_path):
    stock = save_qwen3(tmp_path / "qwen3")
    assert len(list((tmp_path / "qwen3").glob("*.safetensors"))) > 2
    out = tmp_path / "out"
    done = gossamer_cli("prune", tmp_path / "qwen3", "-o", out, "--sparsity", "0.5", "--json")
    assert done.code == 0, done.err
    assert len(json.loads(done.out)["layers"]) == 14
    beside = read_beside(tmp_path / "qwen3")
    assert set(beside) >= {"tokenizer.json", "generation_config.json", "chat_template.jinja"}
    assert read_beside(out) == beside
    model = gossamer.load(out)
    assert type(model) is type(stock)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    masked = {name for name, part in model.named_modules() if form_of(part) == "masked"}
    assert len(masked) == 14
    expected = gossamer.load(tmp_path / "qwen3")
    gossamer.sparsify(expected, sparsity=0.5)
    ids = {"input_ids": torch.arange(7)[None]}
    with torch.no_grad():
        assert distance(outputs_of(model, ids), outputs_of(expected, ids)) == 0
        fast = gossamer.compile(model, tokens=7, kernel="panel")
        assert distance(outputs_of(fast, ids), outputs_of(expected, ids)) <= 1e-5
    rows = json.loads(gossamer_cli("explain", out, "--tokens", "1", "--json").out)["layers"]
    assert {row["name"] for row in rows} >= masked


@pytest.mark.parametrize("title", ["ViT", "Whisper", "T5", "Mamba", "CLIP", "Wav2Vec2", "ResNet"])
def test_models_that_read_no_text_go_through_the_commands(gossamer_cli, tmp_path, title):
    row = next(row for row in ARCHITECTURES if row.title == title)
    stock = make(row)
    stock.save_pretrained(tmp_path / "hf")
    out = tmp_path / "out"
    for call in (("prune", tmp_path / "hf", "-o", out, "--sparsity", "0.5"), ("explain", out)):
        done = gossamer_cli(*call, "--tokens", "1", "--json")
        assert done.code == 0, done.err
    expected = gossamer.load(tmp_path / "hf")
    gossamer.sparsify(expected, sparsity=0.5)
    inputs = inputs_of(stock)
    with torch.no_grad():
        found = outputs_of(gossamer.load(out), inputs)
        assert distance(found, outputs_of(expected, inputs)) == 0


def test_a_tokenizer_for_another_vocabulary_is_named(gossamer_cli, tmp_path):
    save_qwen3(tmp_path / "small", vocabulary=40)
    (tmp_path / "text.txt").write_text("zebra zebra zebra " * 200)
    out = tmp_path / "out"
    recipe = ("--recipe", "wanda-50", "--data", tmp_path / "text.txt")
    done = gossamer_cli("prune", tmp_path / "small", "-o", out, *recipe)
    assert done.code != 0
    assert "tokenizer.json: gives the token" in done.err
    assert "the model has tokens 0 to 39" in done.err
    assert not out.exists()


RECIPE = """
gossamer: 1
stages:
  - train:
      task: text
      steps: 2
      batch: 2
{more}
"""


def test_a_model_is_trained_in_its_own_tokens(gossamer_cli, tmp_path):
    """Bytes would be other words to it; the words of its tokenizer are fewer than bytes."""
    save_qwen3(tmp_path / "qwen3")
    text = "the quick brown fox " * 400
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(more=""))
    call = ("train", tmp_path / "recipe.yaml", "--model", tmp_path / "qwen3")
    call = (*call, "--data", tmp_path / "text.txt")
    done = gossamer_cli(*call, "-o", tmp_path / "out")
    assert done.code == 0, done.err
    tokenizer = byte_tokenizer()
    assert read_beside(tmp_path / "out")["tokenizer.json"] == tokenizer.to_str().encode()
    said = RECIPE.format(more="      data: {tokens: bytes}")
    (tmp_path / "recipe.yaml").write_text(said)
    done = gossamer_cli(*call, "-o", tmp_path / "other")
    assert done.code == 2
    assert "has a tokenizer of its own" in done.err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("T5", "whose classes end in ForCausalLM or LMHeadModel; got a T5ForConditionalGeneration"),
        ("ViT", "whose classes end in ForCausalLM or LMHeadModel; got a ViTForImageClassification"),
        ("BERT", "see none of those behind it"),
        ("Mamba", "these data have 256 tokens, and this MambaForCausalLM knows 101"),
    ],
)
def test_models_that_cannot_learn_from_a_text_are_named(gossamer_cli, tmp_path, title, words):
    row = next(row for row in ARCHITECTURES if row.title == title)
    make(row).save_pretrained(tmp_path / "hf")
    (tmp_path / "text.txt").write_text("the quick brown fox " * 400)
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(more=""))
    call = ("train", tmp_path / "recipe.yaml", "--model", tmp_path / "hf")
    done = gossamer_cli(*call, "--data", tmp_path / "text.txt", "-o", tmp_path / "out")
    assert done.code == 2
    assert words in done.err
    assert not (tmp_path / "out").exists()


def test_windows_are_no_longer_than_the_positions_of_a_model(gossamer_cli, tmp_path):
    row = next(row for row in ARCHITECTURES if row.title == "GPT-2")
    large = {**row.settings, "vocab_size": 256}
    make(dataclasses.replace(row, settings=large)).save_pretrained(tmp_path / "hf")
    (tmp_path / "text.txt").write_text("the quick brown fox " * 400)
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(more=""))
    call = ("train", tmp_path / "recipe.yaml", "--model", tmp_path / "hf")
    done = gossamer_cli(*call, "--data", tmp_path / "text.txt", "-o", tmp_path / "out")
    assert done.code == 0, done.err
