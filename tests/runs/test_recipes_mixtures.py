# SPDX-License-Identifier: Apache-2.0
"""Stages that make experts and take some out: recipes, files, notes, refusals before any work."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import gossamer
from gossamer import sparsify
from gossamer.errors import RecipeError
from gossamer.nn.moe import moe_layers
from gossamer.recipes import builtin_names, load_recipe
from gossamer.recipes.loader import parse_recipe
from gossamer.zoo import GPT

MIXTURES = [name for name in builtin_names() if name.startswith(("moefy-", "upcycle-", "fewer-"))]


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).eval()


def batches(count=8):
    generator = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(0, 61, (2, 16), generator=generator)} for _ in range(count)]


def recipe(*stages):
    lines = ["gossamer: 1", "stages:", *(f"  - {stage}" for stage in stages)]
    return parse_recipe("\n".join(lines).encode(), "recipe.yaml")


def same_when_loaded(model, folder):
    gossamer.save(model, folder)
    again = gossamer.load(folder)
    assert type(again) is type(model)
    with torch.no_grad():
        wanted, found = (net(**batches()[0]).logits for net in (model, again))
    assert torch.equal(found, wanted)
    return again


@pytest.mark.parametrize("name", MIXTURES)
def test_built_in_recipes_run_and_their_files_are_loaded(name, tmp_path):
    model = llama()
    if name.startswith("fewer"):
        sparsify(model, recipe("upcycle: {experts: 4, noise: 0.2}"))
    overrides = {"moefy-decoder": ["steps=2"], "upcycle-decoder": ["experts=3"]}.get(name, [])
    report = sparsify(model, load_recipe(name, overrides), data=batches())
    assert report.notes
    again = same_when_loaded(model, tmp_path / "a")
    if name.startswith("fewer"):
        assert model.config.num_local_experts == 2
        assert report.sparsity == pytest.approx(0.5, abs=0.01)
        fast = gossamer.compile(again, tokens=32)
        assert "experts.gate_up_proj" in str(gossamer.explain(fast))


def test_stages_follow_one_another_and_say_what_they_did(tmp_path):
    model = llama()
    steps = (
        "moefy: {experts: 8, top_k: 2}",
        "fewer_experts: {keep: 0.5}",
        "prune: {method: wanda, sparsity: 0.5}",
        "round: {layers: int4}",
    )
    report = sparsify(model, recipe(*steps), data=batches())
    assert report.notes[0].startswith("moefy: 25% of the neurons")
    assert any(note.startswith("fewer_experts: 4 experts are left") for note in report.notes)
    assert model.config.num_local_experts == 4
    same_when_loaded(model, tmp_path / "a")


def test_a_gpt_of_the_zoo_becomes_a_switch_model(tmp_path):
    torch.manual_seed(0)
    model = GPT(61, width=32, num_layers=2, num_heads=4, context=16).eval()
    sparsify(model, recipe("upcycle: {experts: 4}"))
    assert len(list(moe_layers(model))) == 2
    gossamer.save(model, tmp_path / "a")
    again = gossamer.load(tmp_path / "a").eval()
    ids = torch.randint(0, 61, (2, 9))
    assert torch.equal(again(ids), model(ids))


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        ("upcycle: {experts: 4, top_k: 5}", "top_k: must be at most 4"),
        ("upcycle: {top_k: 9}", "top_k: must be at most 8"),
        ("moefy: {experts: 8, top_k: 8, shared: 1}", "top_k: must be at most 7"),
        ("moefy: {experts: 8, shared: 8}", "shared: must be at most 7"),
        ("fewer_experts: {keep: 50}", "keep"),
        ("fewer_experts: {how: forget}", "how"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_field(stage, text):
    with pytest.raises(RecipeError, match=text):
        recipe(stage)


def test_data_is_asked_for():
    with pytest.raises(RecipeError, match="moefy"):
        sparsify(llama(), recipe("moefy: {}"))
