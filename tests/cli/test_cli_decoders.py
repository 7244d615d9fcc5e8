# SPDX-License-Identifier: Apache-2.0
"""Decoders of several families on the command line: complete and chat on the native engine."""

import json
import sys
from pathlib import Path

import pytest
import torch

from gossamer.cli.main import main

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1] / "running"))

from decoder_models import make_model
from text_models import TEMPLATE, byte_tokenizer

POSITIONS = 200


@pytest.fixture(params=["qwen3", "gemma3", "gpt2"])
def folder(request, tmp_path):
    tokenizer = byte_tokenizer()
    sizes = {
        "vocab_size": tokenizer.get_vocab_size(),
        "eos_token_id": tokenizer.token_to_id("</s>"),
        "n_positions" if request.param == "gpt2" else "max_position_embeddings": POSITIONS,
    }
    make_model(request.param, **sizes).save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    beside = {"eos_token": "</s>", "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(beside))
    return tmp_path


def test_texts_go_on_as_transformers_would_write_them(folder, capsys):
    from transformers import AutoModelForCausalLM

    arguments = ["--prompt", "hello", "--max-tokens", "9", "--dtype", "fp32", "--json", "-q"]
    assert main(["run", "complete", str(folder), *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kernels"] == ["few/bitmask"], "not the native decoder"
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = byte_tokenizer()
    ids = torch.tensor([tokenizer.encode("hello").ids])
    wanted = model.generate(ids, max_new_tokens=9, do_sample=False, pad_token_id=0)[0, 5:].tolist()
    # A character of which bytes are missing at the end is not written.
    assert found["text"].rstrip("\ufffd") == tokenizer.decode(wanted).rstrip("\ufffd")


def test_chats_go_through_the_template(folder, capsys, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    assert main(["run", "chat", str(folder), "--max-tokens", "4"]) == 0
    spoken = capsys.readouterr()
    # <user>hi</s><assistant>: 8 bytes, one special token, 11 bytes.
    assert "prompt 20 tokens" in spoken.err + spoken.out
