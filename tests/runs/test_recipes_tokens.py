# SPDX-License-Identifier: Apache-2.0
"""A `tokens` stage: what it learns from, what it keeps, what it refuses."""

import copy

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

import gossamer
from gossamer import sparsify
from gossamer.errors import RecipeError, TargetError
from gossamer.nn.layers import MaskedWeight
from gossamer.nn.tokens import token_encoder
from gossamer.recipes import builtin_names, load_recipe
from gossamer.running.encoder import run_packed
from gossamer.zoo import TinyEncoder

TOKENS = [name for name in builtin_names() if name.startswith("tokens-")]
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
STAGE = """
gossamer: 1
stages:
{before}  - tokens:
      keep: {keep}
      soft_steps: {steps}
      hard_steps: {steps}
      {term}: 1.0
"""


def tiny(kind=BertModel):
    torch.manual_seed(0)
    model = kind(BertConfig(**SIZES)).eval()
    with torch.no_grad():
        for layer in model.get_submodule("encoder" if kind is BertModel else "bert.encoder").layer:
            layer.attention.self.query.weight *= 30
            layer.attention.self.key.weight *= 30
    return model


def batches(count=6):
    generator = torch.Generator().manual_seed(1)
    live = torch.arange(12) < torch.randint(3, 13, (count, 8, 1), generator=generator)
    ids = torch.randint(2, 50, live.shape, generator=generator) * live
    return [{"input_ids": i, "attention_mask": k.long()} for i, k in zip(ids, live, strict=True)]


def written(tmp_path, keep=0.6, steps=3, term="embeddings", before=""):
    path = tmp_path / "recipe.yaml"
    path.write_text(STAGE.format(keep=keep, steps=steps, term=term, before=before))
    return load_recipe(path)


@pytest.mark.parametrize("name", TOKENS)
def test_built_in_recipes_run(name, tmp_path):
    model = tiny()
    seen = []
    report = sparsify(
        model,
        load_recipe(name, ["steps=2", "keep=0.6"]),
        data=batches(),
        evaluate=lambda net: seen.append(copy.deepcopy(net)) or 1.0,
    )
    assert "% of the layers' multiply-adds" in report.notes[0]
    assert report.quality_sparse == 1.0
    with torch.no_grad(), token_encoder(model).recording() as traces:
        wanted = model(**batches()[0]).last_hidden_state
    assert 0.2 < float(traces[0].keep[-1].sum() / traces[0].real.sum()) < 0.6
    before, after = (dict(net.named_parameters()) for net in (seen[0], model))
    assert torch.equal(
        before["embeddings.word_embeddings.weight"], after["embeddings.word_embeddings.weight"]
    )
    name = "encoder.layer.0.output.dense.weight"
    assert not torch.equal(before[name], after[name])
    gossamer.save(model, tmp_path / "a")
    again = gossamer.load(tmp_path / "a")
    run_packed(again)
    with torch.no_grad():
        torch.testing.assert_close(again(**batches()[0]).last_hidden_state, wanted)


def test_a_classifier_learns_from_logits(tmp_path):
    model = tiny(BertForSequenceClassification)
    sparsify(model, written(tmp_path, term="logits"), data=batches())
    assert token_encoder(model).phase == "hard"


def test_without_steps_thresholds_are_set_and_weights_stay(tmp_path):
    model = tiny()
    before = copy.deepcopy(model.state_dict())
    sparsify(model, written(tmp_path, steps=0), data=batches())
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert min(token_encoder(model).thresholds.tolist()) > 0


def test_masks_are_held(tmp_path):
    model = tiny()
    before = "  - prune:\n      method: magnitude\n      sparsity: 0.5\n"
    report = sparsify(model, written(tmp_path, before=before), data=batches())
    assert report.sparsity == pytest.approx(0.5, abs=0.01)
    assert any(isinstance(module, MaskedWeight) for module in model.modules())


def test_everything_kept_drops_nothing(tmp_path):
    model = tiny()
    report = sparsify(model, written(tmp_path, keep=1.0, steps=0), data=batches())
    assert report.notes[0].startswith("tokens: 100, 100 %")


def test_what_is_refused(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("gossamer: 1\nstages:\n  - tokens:\n      keep: 0.5\n")
    with pytest.raises(RecipeError, match="nothing to learn from"):
        load_recipe(path)
    path.write_text("gossamer: 1\nstages:\n  - tokens:\n      keep: 0\n      logits: 1.0\n")
    with pytest.raises(RecipeError, match="keep"):
        load_recipe(path)
    path.write_text("gossamer: 1\nstages:\n  - tokens:\n      keeps: 0.5\n      logits: 1.0\n")
    with pytest.raises(RecipeError, match="keep"):
        load_recipe(path)
    with pytest.raises(TargetError, match="expected one encoder"):
        sparsify(
            TinyEncoder(50, 3), written(tmp_path), data=[torch.randint(50, (2, 6)) for _ in "ab"]
        )
