# SPDX-License-Identifier: Apache-2.0
"""A `relufy` stage: zeros on the data, recovery after it, files that need not know."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, LlamaModel

import gossamer
from gossamer import sparsify
from gossamer.errors import RecipeError, TargetError
from gossamer.nn.relufication.states import relu_states
from gossamer.recipes import Recipe, builtin_names, load_recipe
from gossamer.recipes.schema import Stage
from gossamer.recipes.stages import Relufy
from gossamer.running.decoder import DecoderEngine
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


def tiny_llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2)).eval()


def ids_only():
    return [{"input_ids": batch["input_ids"]} for batch in batches()]


def test_every_built_in_recipe_is_run_here():
    assert RELUFY == ["relufy-decoder", "relufy-encoder"]


def test_the_encoder_recipe_runs(tmp_path):
    model = tiny()
    report = sparsify(model, load_recipe("relufy-encoder", ["steps=4"]), data=batches())
    assert report.notes[0].startswith("relufy: 8")
    assert report.notes[1].startswith("recovered in 4 steps")
    assert 0.7 < zeros_of(model) < 0.95
    gossamer.save(model, tmp_path / "a")
    again = gossamer.load(tmp_path / "a")
    with torch.no_grad():
        wanted = model(**batches()[0]).last_hidden_state
        assert torch.equal(again(**batches()[0]).last_hidden_state, wanted)


@pytest.mark.parametrize("norms", ["true", "false"])
def test_the_decoder_recipe_runs_and_files_keep_it(norms, tmp_path):
    model = tiny_llama()
    recipe = load_recipe("relufy-decoder", ["steps=3", "zeros=0.8", f"norms={norms}"])
    report = sparsify(model, recipe, data=ids_only())
    assert "files of gossamer" in " ".join(report.notes)
    found = measure_activation_sparsity(model, ids_only(), lambda net, batch: net(**batch))
    assert 0.75 < found.zeros < 0.85
    gossamer.save(model, tmp_path / "a")
    again = gossamer.load(tmp_path / "a")
    assert relu_states(again) == relu_states(model) != {}
    assert ("after" in relu_states(again).values()) == (norms == "true")
    given = gossamer.load(tmp_path / "a", model=tiny_llama())
    engine = DecoderEngine(model, "fp32", active_neurons=True)
    ids = ids_only()[0]["input_ids"][:1]
    with torch.no_grad():
        wanted = model(ids).logits
        assert torch.equal(again(ids).logits, wanted)
        assert torch.equal(given(ids).logits, wanted)
    session = engine.session()
    first = session.prompt(ids[0, :-1].tolist())
    torch.testing.assert_close(first, wanted[0, -2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(session.append(int(ids[0, -1])), wanted[0, -1], rtol=1e-4, atol=1e-5)


def test_a_threshold_keeps_what_is_above_it():
    model = tiny()
    found = {}

    def look(module, args, output):
        found["x"], found["y"] = args[0].detach(), output.detach()

    recipe = Recipe(gossamer=1, stages=(Stage(relufy=Relufy(zeros=0.9, form="threshold")),))
    sparsify(model, recipe, data=batches())
    model.encoder.layer[0].intermediate.intermediate_act_fn.register_forward_hook(look)
    model(**batches()[0])
    kept = found["y"] != 0
    assert 0 < int(kept.sum()) < kept.numel()
    assert torch.equal(found["y"][kept], found["x"][kept])
    assert float(found["x"][kept].min()) > float(found["x"][~kept].max())


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
    assert "in files of gossamer" in report.notes[1]


def test_what_is_refused(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("gossamer: 1\nstages:\n  - relufy: {zeros: 1.0}\n")
    with pytest.raises(RecipeError, match="zeros"):
        load_recipe(path)
    path.write_text("gossamer: 1\nstages:\n  - relufy: {form: threshold}\n")
    with pytest.raises(RecipeError, match="chosen for a fraction of zeros"):
        load_recipe(path)
    norms = Recipe(gossamer=1, stages=(Stage(relufy=Relufy(norms=True)),))
    with pytest.raises(TargetError, match="normalises what is added"):
        sparsify(tiny(), norms, data=batches())
    with pytest.raises(RecipeError, match="needs calibration data"):
        sparsify(tiny(), alone())
    with pytest.raises(TargetError, match="feed-forward"):
        sparsify(nn.Sequential(nn.Linear(4, 4)), alone(), data=[torch.randn(2, 4)])
