# SPDX-License-Identifier: Apache-2.0
"""Token pruning in artifacts: what is dropped after loading is what was dropped before saving."""

import json

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    RobertaConfig,
    RobertaModel,
)

import gossamer
from gossamer.errors import ArtifactError
from gossamer.io.safe_files.manifests import MANIFEST_FILE, digest_of
from gossamer.nn.tokens import TokenPrunedEncoder, add_token_pruning, token_encoder
from gossamer.running.encoder import run_packed

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}


def pruned(kind=BertForSequenceClassification, config=BertConfig, **rules):
    torch.manual_seed(0)
    model = kind(config(**SIZES)).eval()
    encoder = add_token_pruning(model, **rules)
    with torch.no_grad():
        for layer in encoder.layer:
            layer.attention.self.query.weight *= 30
            layer.attention.self.key.weight *= 30
        encoder.thresholds.copy_(torch.tensor([0.02, 0.05, 0.11]))
    return model


def answers(model):
    live = torch.arange(12) < torch.tensor([[12], [5], [1], [9]])
    ids = torch.randint(2, 50, live.shape, generator=torch.Generator().manual_seed(1)) * live
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=live.long())[0]


@pytest.mark.parametrize("format", ["packed", "dense"])
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"normalise": "received", "dropped": "last"},
        {"normalise": "padded", "soft": "published"},
    ],
)
def test_thresholds_and_rules_come_back(tmp_path, rules, format):
    model = pruned(**rules)
    gossamer.save(model, tmp_path / "a", format)
    again = gossamer.load(tmp_path / "a")
    old, new = token_encoder(model), token_encoder(again)
    assert torch.equal(old.thresholds, new.thresholds)
    assert (new.normalise, new.dropped, new.soft) == (old.normalise, old.dropped, old.soft)
    assert torch.equal(answers(model), answers(again))
    old.phase = "off"
    assert not torch.equal(answers(model), answers(again))


@pytest.mark.parametrize("phase", ["off", "soft", "hard"])
def test_the_phase_comes_back(tmp_path, phase):
    model = pruned(BertModel)
    token_encoder(model).phase = phase
    token_encoder(model).temperature = 0.03
    gossamer.save(model, tmp_path / "a")
    again = gossamer.load(tmp_path / "a")
    assert (token_encoder(again).phase, token_encoder(again).temperature) == (phase, 0.03)
    assert torch.equal(answers(model), answers(again))


def test_roberta_comes_back(tmp_path):
    model = pruned(RobertaModel, RobertaConfig)
    gossamer.save(model, tmp_path / "a")
    assert torch.equal(answers(model), answers(gossamer.load(tmp_path / "a")))


def test_a_packed_encoder_is_saved_as_what_it_was_made_of(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    model = pruned()
    gossamer.sparsify(model, "magnitude-50")
    gossamer.compact(model)
    wanted = answers(model)
    run_packed(model)
    fast = gossamer.compile(model, tokens=(128,))
    gossamer.save(fast, tmp_path / "a")
    again = gossamer.load(tmp_path / "a")
    assert isinstance(token_encoder(again), TokenPrunedEncoder)
    assert torch.equal(answers(again), wanted)
    run_packed(again)
    torch.testing.assert_close(answers(again), answers(fast))


def test_a_stock_encoder_that_runs_packed_comes_back_stock(tmp_path):
    model = BertModel(BertConfig(**SIZES)).eval()
    wanted = answers(model)
    run_packed(model)
    gossamer.save(model, tmp_path / "a")
    again = gossamer.load(tmp_path / "a")
    assert type(again.encoder).__name__ == "BertEncoder"
    torch.testing.assert_close(answers(again), wanted)


def test_thresholds_fill_a_model_that_prunes_tokens_and_no_other(tmp_path):
    model = pruned(BertModel)
    gossamer.save(model, tmp_path / "a")
    with pytest.raises(ArtifactError, match="thresholds"):
        gossamer.load(tmp_path / "a", model=BertModel(BertConfig(**SIZES)))
    other = BertModel(BertConfig(**SIZES)).eval()
    add_token_pruning(other)
    gossamer.load(tmp_path / "a", model=other)
    assert torch.equal(answers(model), answers(other))


def edit_architecture(path, change):
    content = json.loads((path / MANIFEST_FILE).read_text())
    content.pop("digest")
    change(content["architecture"])
    content["digest"] = digest_of(content)
    (path / MANIFEST_FILE).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("field", "value"), [("phase", "sometimes"), ("soft", "x"), ("temperature", 0.0)]
)
def test_unknown_settings_are_refused(tmp_path, field, value):
    gossamer.save(pruned(), tmp_path / "a")
    edit_architecture(tmp_path / "a", lambda node: node["tokens"].update({field: value}))
    with pytest.raises(ArtifactError, match=f"tokens.{field}"):
        gossamer.load(tmp_path / "a")


def test_rules_of_a_newer_version_are_refused(tmp_path):
    model = pruned()
    token_encoder(model).rules[0] = 7
    gossamer.save(model, tmp_path / "a")
    again = gossamer.load(tmp_path / "a")
    with pytest.raises(gossamer.errors.InputError, match="newer version"):
        answers(again)
