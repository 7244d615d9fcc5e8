# SPDX-License-Identifier: Apache-2.0
"""The stage `attention`: a model attends to a pattern, is trained and saved with it."""

import pytest
import torch

import gossamer
from gossamer.errors import PatternError, RecipeError
from gossamer.nn.attention import attention_states
from gossamer.recipes import load_recipe, make_recipe
from gossamer.runs import sparsify
from gossamer.zoo import GPT

transformers = pytest.importorskip("transformers")


def recipe(**fields):
    return make_recipe({"gossamer": 1, "stages": [{"attention": fields}]}, "the test")


def llama(layers=2):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=256,
    )
    return transformers.LlamaForCausalLM(config).eval()


def batches(count=4, tokens=96):
    generator = torch.Generator().manual_seed(0)
    return [
        {"input_ids": torch.randint(64, (2, tokens), generator=generator)} for _ in range(count)
    ]


def test_the_stage_gives_a_pattern_and_says_what_it_costs(tmp_path):
    model = llama(3)
    made = recipe(pattern="window:16 | sinks:4", ignore="model.layers.0")
    report = sparsify(model, made, data=batches(), evaluate=lambda net: 1.0)
    states = attention_states(model)
    assert list(states) == [f"model.layers.{number}.self_attn" for number in (1, 2)]
    assert {state.pattern for state in states.values()} == {"window:16+sinks:4"}
    # 96 causal tokens: each sees 16, the first 15 fewer, and up to 4 sinks besides.
    seen = sum(len({*range(max(0, i - 15), i + 1), *range(min(4, i + 1))}) for i in range(96))
    assert f"of samples of 96 tokens {seen / (96 * 97 / 2):.1%} of the pairs" in report.notes[0]
    assert report.ms_dense is not None
    gossamer.save(model, tmp_path / "kept")
    assert attention_states(gossamer.load(tmp_path / "kept")) == states


def test_a_stage_without_data_works_on_the_zoo():
    model = GPT(64, width=32, num_layers=2, context=128)
    report = sparsify(model, recipe(pattern="strided:16"))
    assert "2 layers attend to 'strided:16'." in report.notes[0]


def test_the_built_in_recipe_trains_what_it_changed():
    model = llama()
    made = load_recipe("attention-window", ["steps=3", "pattern=window:16"])
    report = sparsify(model, made, data=batches(8))
    assert any(note.startswith("recovered in 3 steps") for note in report.notes)
    assert len(attention_states(model)) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pattern": "windwo:256"}, r"stages\[0\].attention.pattern: position 1: .*did you mean"),
        ({"pattern": 3}, "text"),
        ({}, "pattern"),
        ({"pattern": "full", "ignore": "re:("}, "is not a regular expression"),
        ({"pattern": "full", "windows": 3}, "windows"),
    ],
)
def test_mistakes_are_named(fields, message):
    with pytest.raises(RecipeError, match=message):
        recipe(**fields)


def test_rules_and_patterns_that_do_not_fit_the_model_are_named():
    with pytest.raises(gossamer.errors.TargetError, match="'nothing' matched 0"):
        sparsify(llama(), recipe(pattern="window:16", ignore="nothing"))
    with pytest.raises(PatternError, match="3 patterns for 4 heads"):
        sparsify(llama(), recipe(pattern="full; full; window:8"))
    with pytest.raises(gossamer.errors.InputError, match="no attention layer of LlamaForCausalLM"):
        sparsify(llama(), recipe(pattern="window:16", ignore="model.layers.*"))
