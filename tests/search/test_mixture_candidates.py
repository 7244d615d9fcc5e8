# SPDX-License-Identifier: Apache-2.0
"""`shrink` deals out the neurons of a dense decoder, and takes experts out of a mixture."""

import pytest
import torch
from search_tools import make_quick, random_lines, tiny_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

import gossamer
from gossamer.search import rungs, shrink
from gossamer.search.candidates import Mask

SIZES = {
    "vocab_size": 12,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
}


def found_for(model, tmp_path, monkeypatch):
    make_quick(monkeypatch, steps=())
    monkeypatch.setattr(rungs, "_MOEFIED_STEPS", 2)
    monkeypatch.setattr(rungs, "_HOPELESS", 1e9)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(random_lines(200)))
    front = shrink(
        model,
        text,
        tmp_path / "out",
        tokenizer=tiny_tokenizer(),
        masks=(Mask("unstructured", 0.5),),
        budget_minutes=30,
        max_loss=0.5,
    )
    return {point.candidate for point in front.points}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_mixtures_are_tried_and_measured(kind, tmp_path, monkeypatch):
    torch.manual_seed(0)
    if kind == "dense":
        model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
        wanted = {"moefied-25", "moefied-50", "moefied-75", "moefied-25-recovered-2"}
    else:
        settings = {"num_local_experts": 4, "num_experts_per_tok": 2}
        model = MixtralForCausalLM(MixtralConfig(**SIZES, **settings)).eval()
        wanted = {"experts-75-drop", "experts-50-drop", "experts-50-merge", "experts-50-drop-50"}
    names = found_for(model, tmp_path, monkeypatch)
    assert wanted <= names
    for name in wanted:
        folder = next((tmp_path / "out.work").glob(f"**/{name}"))
        assert gossamer.load(folder).config.model_type in ("qwen2_moe", "mixtral")
