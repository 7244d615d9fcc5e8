# SPDX-License-Identifier: Apache-2.0
"""A `relufy` stage: zeros on the data, recovery after it, files that need not know."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

import gossamer
from gossamer import sparsify
from gossamer.errors import RecipeError, TargetError
from gossamer.recipes import Recipe, builtin_names, load_recipe
from gossamer.recipes.schema import Stage
from gossamer.recipes.stages import Relufy
from gossamer.training.recovery import measure_activation_sparsity

RELUFY = [name for name in builtin_names() if name.startswith("relufy-")]
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}


def tiny():
    torch.manual_seed(0)
    return BertModel(BertConfig(**SIZES)).eval()


def batches(count=6):
    generator = torch.Generator().manual_seed(1)
    live = torch.arange(12) < torch.randint(3, 13, (count, 8, 1), generator=generator)
    ids = torch.randint(2, 50, live.shape, generator=generator) * live
    return [{"input_ids": i, "attention_mask": k.long()} for i, k in zip(ids, live, strict=True)]


def zeros_of(model):
    return measure_activation_sparsity(
        model, batches(), lambda net, batch: net(**batch), keep=lambda b: b["attention_mask"]
    ).zeros


def alone(zeros=None):
    return Recipe(gossamer=1, stages=(Stage(relufy=Relufy(zeros=zeros)),))


@pytest.mark.parametrize("name", RELUFY)
def test_built_in_recipes_run(name, tmp_path):
    model = tiny()
    report = sparsify(model, load_recipe(name, ["steps=4"]), data=batches())
    assert report.notes[0].startswith("relufy: 8")
    assert report.notes[1].startswith("recovered in 4 steps")
    assert 0.7 < zeros_of(model) < 0.95
    gossamer.save(model, tmp_path / "a")
    again = gossamer.load(tmp_path / "a")
    with torch.no_grad():
        wanted = model(**batches()[0]).last_hidden_state
        assert torch.equal(again(**batches()[0]).last_hidden_state, wanted)


@pytest.mark.parametrize(("zeros", "low", "high"), [(None, 0.3, 0.7), (0.9, 0.88, 0.92)])
def test_zeros_are_those_asked_for(zeros, low, high):
    model = tiny()
    sparsify(model, alone(zeros), data=batches())
    assert all(isinstance(b.intermediate.intermediate_act_fn, nn.ReLU) for b in model.encoder.layer)
    assert low < zeros_of(model) < high


def test_blocks_without_a_bias_keep_their_shift_and_say_so():
    torch.manual_seed(0)
    model = LlamaModel(LlamaConfig(**SIZES, num_key_value_heads=2)).eval()
    report = sparsify(model, alone(0.9), data=[{"input_ids": b["input_ids"]} for b in batches()])
    assert "without a bias" in report.notes[1]


def test_what_is_refused(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("gossamer: 1\nstages:\n  - relufy: {zeros: 1.0}\n")
    with pytest.raises(RecipeError, match="zeros"):
        load_recipe(path)
    with pytest.raises(RecipeError, match="needs calibration data"):
        sparsify(tiny(), alone())
    with pytest.raises(TargetError, match="feed-forward"):
        sparsify(nn.Sequential(nn.Linear(4, 4)), alone(), data=[torch.randn(2, 4)])
