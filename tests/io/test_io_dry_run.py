# SPDX-License-Identifier: Apache-2.0
"""Configurations of models that could not run: refused before weights are read."""

import json
import sys
from pathlib import Path

import pytest
import torch

from gossamer.errors import ArtifactError
from gossamer.io import load_pretrained
from gossamer.io.huggingface import build_transformers
from gossamer.io.huggingface.transformers_models import TRANSFORMERS_CLASSES

transformers = pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[1] / "running"))
from text_models import save_decoder, save_encoder  # noqa: E402

_DEEP = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_BERT = _DEEP | {"intermediate_size": 64}
_LLAMA = _BERT | {"num_key_value_heads": 1}
SMALL = {
    "bert": _BERT, "roberta": _BERT, "llama": _LLAMA, "qwen2": _LLAMA, "mistral": _LLAMA,
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2},
    "opt": _DEEP | {"ffn_dim": 64, "word_embed_proj_dim": 32},
}  # fmt: skip
# The same words for sizes; classes ignore those that they do not have.
SMALL |= dict.fromkeys(
    set(TRANSFORMERS_CLASSES.values()) - set(SMALL), _LLAMA | {"pad_token_id": 0}
)


def content(family, **changes):
    config = transformers.AutoConfig.for_model(family, vocab_size=50, **SMALL[family])
    return json.loads(config.to_json_string()) | changes


def build(name, **changes):
    config = content(TRANSFORMERS_CLASSES[name], **changes)
    return build_transformers(name, config, max_tensors=1000, device="meta")


@pytest.mark.parametrize("name", TRANSFORMERS_CLASSES)
def test_every_known_class_passes(name):
    assert type(build(name)).__name__ == name


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("LlamaForCausalLM", {"num_key_value_heads": 3}),
        ("LlamaForCausalLM", {"num_attention_heads": 3}),
        ("LlamaForCausalLM", {"head_dim": 7}),
        ("LlamaForCausalLM", {"num_attention_heads": 0}),
        ("LlamaForCausalLM", {"hidden_size": -32}),
        ("LlamaForCausalLM", {"vocab_size": 0}),
        ("LlamaForCausalLM", {"vocab_size": 2**40}),
        ("LlamaForCausalLM", {"num_hidden_layers": -1}),
        ("LlamaForCausalLM", {"num_hidden_layers": 10**9}),
        ("LlamaForCausalLM", {"rms_norm_eps": -1.0}),
        ("LlamaForCausalLM", {"rope_theta": 0.0}),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "factor": 0}}),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "unheard of"}}),
        ("LlamaForCausalLM", {"rope_parameters": [1]}),
        ("LlamaForCausalLM", {"hidden_act": "unheard of"}),
        ("LlamaForCausalLM", {"hidden_act": {"a": 1}}),
        ("LlamaForCausalLM", {"pad_token_id": 50}),
        ("BertModel", {"num_attention_heads": 5}),
        ("BertModel", {"type_vocab_size": 0}),
        ("BertModel", {"max_position_embeddings": 0}),
        ("BertModel", {"layer_norm_eps": -1e-5}),
        ("BertModel", {"hidden_size": True}),
        ("BertForSequenceClassification", {"id2label": {"7": "a"}}),
        ("RobertaModel", {"max_position_embeddings": 2}),
        ("RobertaModel", {"pad_token_id": None}),
        ("GPT2LMHeadModel", {"n_head": 5}),
        ("GPT2LMHeadModel", {"n_inner": -4}),
        ("OPTForCausalLM", {"num_attention_heads": 5}),
        ("DistilBertModel", {"n_heads": 5}),
        ("Qwen2ForCausalLM", {"layer_types": ["unheard of", "full_attention"]}),
    ],
)
def test_sizes_that_cannot_be(name, changes):
    with pytest.raises(ArtifactError, match=r"^config\.json: "):
        build(name, **changes)


def test_scaled_positions_that_depend_on_numbers_are_not_refused():
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    build("LlamaForCausalLM", rope_parameters=rope)


def test_a_deep_model_costs_one_layer(monkeypatch):
    """The run without numbers is of one layer, whatever the file says."""
    seen = []
    forward = transformers.LlamaModel.forward

    def watched(self, *args, **options):
        seen.append(len(self.layers))
        return forward(self, *args, **options)

    monkeypatch.setattr(transformers.LlamaModel, "forward", watched)
    assert len(build("LlamaForCausalLM", num_hidden_layers=40).model.layers) == 40
    assert seen == [1]


def test_how_calls_go_about_it_is_not_taken_from_a_file(tmp_path):
    """`return_dict` would hide the outputs, `chunk_size_feed_forward` refuses most lengths."""
    folder = save_encoder(tmp_path / "m")
    ids = torch.arange(3)[None]
    with torch.no_grad():
        expected = load_pretrained(folder)(ids).last_hidden_state
    path = folder / "config.json"
    changes = {"return_dict": False, "chunk_size_feed_forward": 5}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with torch.no_grad():
        assert torch.equal(load_pretrained(folder)(ids).last_hidden_state, expected)


def test_sizes_that_are_left_out_do_not_fill_the_memory(tmp_path, monkeypatch):
    """The defaults of a Llama are those of a large one; transformers would make its weights."""
    folder = save_decoder(tmp_path / "m")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in config.items() if "_size" not in k}))
    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", None)
    with pytest.raises(ArtifactError, match=r"hold \d+ weights, but .* needs \d{7,}"):
        load_pretrained(folder)


def test_a_directory_whose_weights_fit_and_whose_sizes_do_not(tmp_path):
    folder = save_decoder(tmp_path / "m")
    path = folder / "config.json"
    # Two heads of 16 and one of keys: the same matrices as three heads of keys never are.
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"num_key_value_heads": 3}))
    with pytest.raises(ArtifactError, match="num_key_value_heads is 3; expected a divisor of 2"):
        load_pretrained(folder)
