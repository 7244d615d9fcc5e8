# SPDX-License-Identifier: Apache-2.0
"""transformers models: in from a local directory, out as artifact, and nothing else followed."""

import json
import sys

import pytest
import torch
from artifact_tools import assert_same_model, edit_manifest, rehash, sparsify
from torch import nn

from gossamer.errors import ArtifactError, InputError, ResourceError
from gossamer.io import adopt_zeros, load, load_pretrained, save
from gossamer.io.artifact import open_artifact
from gossamer.io.huggingface.transformers_models import TRANSFORMERS_CLASSES
from gossamer.nn import Linear, MaskedLinear

transformers = pytest.importorskip("transformers")

SMALL = {
    "bert": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 32, "vocab_size": 50, "max_position_embeddings": 20},
    "roberta": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                "intermediate_size": 32, "vocab_size": 50, "max_position_embeddings": 20},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": 50,
                   "max_position_embeddings": 20},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, "n_positions": 20,
             "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "opt": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32,
            "vocab_size": 50, "max_position_embeddings": 20, "word_embed_proj_dim": 16},
    "llama": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
              "num_key_value_heads": 1, "intermediate_size": 32, "vocab_size": 50,
              "max_position_embeddings": 20, "pad_token_id": 0},
}  # fmt: skip
# The same words for sizes; classes ignore those that they do not have.
SMALL |= dict.fromkeys(set(TRANSFORMERS_CLASSES.values()) - set(SMALL), SMALL["llama"])
IMAGES = {"image_size": 8, "patch_size": 4}
IDS = torch.arange(3, 9).unsqueeze(0)


def small_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    images = IMAGES if kind.main_input_name == "pixel_values" else {}
    return kind(kind.config_class(**SMALL[TRANSFORMERS_CLASSES[name]], **images)).eval()


def output(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        if model.main_input_name == "pixel_values":
            return model(torch.linspace(-1, 1, 192).view(1, 3, 8, 8))[0]
        return model(input_ids=IDS)[0]


@pytest.fixture
def saved_bert(tmp_path):
    model = small_model("BertModel")
    model.save_pretrained(tmp_path / "hf")
    return tmp_path / "hf", model


@pytest.mark.parametrize("name", TRANSFORMERS_CLASSES)
def test_every_class_of_the_table_comes_back_packed(tmp_path, name):
    model = sparsify(small_model(name), "compact", density=0.5)
    save(model, tmp_path / "a")
    again = load(tmp_path / "a")
    assert type(again) is type(model)
    assert_same_model(model, again)
    assert torch.equal(output(model), output(again))
    tied = [n for n, p in model.named_parameters(remove_duplicate=False)]
    assert tied == [n for n, p in again.named_parameters(remove_duplicate=False)]
    assert len(list(model.parameters())) == len(list(again.parameters()))


@pytest.mark.parametrize(
    "name", ["BertForSequenceClassification", "LlamaForCausalLM", "GPT2LMHeadModel"]
)
def test_dense_artifacts_are_directories_transformers_reads(tmp_path, name):
    model = sparsify(small_model(name), "masked", density=0.5)
    save(model, tmp_path / "a", format="dense")
    again = getattr(transformers, name).from_pretrained(tmp_path / "a", local_files_only=True)
    assert torch.equal(output(model), output(again.eval()))
    assert torch.equal(output(load_pretrained(tmp_path / "a")), output(model))
    assert torch.equal(output(load(tmp_path / "a")), output(model))


def test_load_pretrained_and_prune_and_save(saved_bert, tmp_path):
    path, model = saved_bert
    loaded = load_pretrained(path)
    assert_same_model(model, loaded)
    assert type(load(path)) is type(model)
    sparsify(loaded, "masked")
    save(loaded, tmp_path / "packed")
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    assert config["architectures"] == ["BertModel"]
    assert config["model_type"] == "bert"
    again = load(tmp_path / "packed")
    assert isinstance(again.encoder.layer[0].attention.self.query, MaskedLinear)
    assert torch.equal(output(loaded), output(again))


def test_a_pruned_directory_of_another_tool(saved_bert, tmp_path):
    _, model = saved_bert
    with torch.no_grad():
        for module in model.encoder.modules():
            if isinstance(module, nn.Linear):
                module.weight[:, ::2] = 0
    model.save_pretrained(tmp_path / "pruned")
    again = load_pretrained(tmp_path / "pruned")
    adopted = adopt_zeros(again)
    assert len(adopted) == 12
    assert {str(layer.pattern) for layer in adopted} == {"2:4"}
    assert torch.equal(output(again), output(model))


def test_sharded_directory(saved_bert, tmp_path):
    _, model = saved_bert
    model.save_pretrained(tmp_path / "sharded", max_shard_size="5KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    assert_same_model(model, load_pretrained(tmp_path / "sharded"))


def test_sixteen_bit_weights_stay_sixteen_bit(tmp_path):
    model = small_model("LlamaForCausalLM").to(torch.bfloat16)
    model.save_pretrained(tmp_path / "hf")
    loaded = load_pretrained(tmp_path / "hf")
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    save(sparsify(loaded, "compact"), tmp_path / "a")
    again = load(tmp_path / "a")
    assert {p.dtype for p in again.parameters()} == {torch.bfloat16}
    assert torch.equal(output(loaded), output(again))


def test_nothing_is_initialised_at_random_or_dropped(saved_bert):
    from safetensors.torch import load_file, save_file

    path, _ = saved_bert
    tensors = load_file(path / "model.safetensors")
    first = next(iter(tensors))
    for changed in (
        {k: v for k, v in tensors.items() if k != first},
        {**tensors, "extra": torch.ones(2)},
    ):
        save_file(changed, path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ArtifactError, match=r"do not fit BertModel.*(missing|unexpected)"):
            load_pretrained(path)


def edit_config(path, **changes):
    file = path / "config.json"
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in content.items() if v != "remove"}))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"architectures": ["os.system"]}, "not a known transformers class"),
        ({"architectures": ["PreTrainedModel"]}, "not a known transformers class"),
        ({"architectures": "remove"}, "does not name one architecture"),
        ({"architectures": []}, "does not name one architecture"),
        ({"architectures": ["LlamaModel"]}, "needs model_type 'llama'"),
        ({"model_type": "llama"}, "needs model_type 'bert'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_labels": 10**9}, "num_labels is 1000000000"),
        ({"vocab_size": 2**40}, "vocab_size"),
        ({"hidden_act": "__import__('os')"}, "refuses it"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"dtype": "load"}, "is none of"),
    ],
)
def test_hostile_configurations_are_refused(saved_bert, changes, text):
    path, _ = saved_bert
    edit_config(path, **changes)
    with pytest.raises(ArtifactError, match=text):
        load_pretrained(path)


def test_huge_configuration_is_refused_before_it_is_built(saved_bert):
    path, _ = saved_bert
    edit_config(path, vocab_size=2**31 - 1, hidden_size=2**20, intermediate_size=2**20)
    with pytest.raises(ResourceError, match="bytes of memory"):
        load_pretrained(path)


def test_remote_code_and_kernels_named_in_a_file_are_never_touched(saved_bert, tmp_path):
    path, model = saved_bert
    marker = tmp_path / "marker"
    code = f"open({str(marker)!r}, 'w').write('x')\n"
    for name in ("modeling_evil.py", "configuration_evil.py"):
        (path / name).write_text(code)
    edit_config(
        path,
        auto_map={"AutoModel": "modeling_evil.Evil", "AutoConfig": "configuration_evil.Evil"},
        attn_implementation="evil-org/evil-kernel:attention",
        _attn_implementation="evil-org/evil-kernel:attention",
        experts_implementation="evil-org/evil",
        quantization_config={"quant_method": "compressed-tensors", "format": "evil:attr"},
        sparsity_config={"format": "modeling_evil:Evil"},
        trust_remote_code=True,
    )
    loaded = load_pretrained(path)
    assert_same_model(model, loaded)
    assert not marker.exists()
    assert not hasattr(loaded.config, "auto_map")
    assert loaded.config._attn_implementation in ("sdpa", "eager")
    assert not hasattr(loaded.config, "quantization_config")


def test_hostile_configuration_inside_an_artifact(tmp_path):
    save(sparsify(small_model("BertModel"), "compact"), tmp_path / "a")
    edit_config(tmp_path / "a", num_hidden_layers=3)
    with pytest.raises(ArtifactError, match="truncated or replaced"):
        load(tmp_path / "a")
    rehash(tmp_path / "a")
    with pytest.raises(ArtifactError, match="does not fit"):
        load(tmp_path / "a")
    edit_config(tmp_path / "a", num_hidden_layers=2, max_position_embeddings=2**31)
    rehash(tmp_path / "a")
    with pytest.raises(ArtifactError, match="shape"):
        load(tmp_path / "a")
    edit_manifest(tmp_path / "a", lambda m: m["architecture"].update(name="AutoModel"))
    with pytest.raises(ArtifactError, match="not a known transformers class"):
        load(tmp_path / "a")


def test_missing_transformers_names_the_extra(tmp_path, monkeypatch):
    save(sparsify(small_model("BertModel"), "compact"), tmp_path / "a")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"gossamer\[hf\]"):
        load(tmp_path / "a")


def test_a_users_own_subclass_asks_for_a_model(tmp_path):
    class Mine(transformers.BertModel):
        pass

    model = Mine(transformers.BertConfig(**SMALL["bert"])).eval()
    save(sparsify(model, "compact"), tmp_path / "a")
    with open_artifact(tmp_path / "a") as artifact:
        assert artifact.manifest.architecture is None
        assert "config.json" in artifact.manifest.files
    with pytest.raises(ArtifactError, match="model="):
        load(tmp_path / "a")
    again = load(tmp_path / "a", model=Mine(transformers.BertConfig(**SMALL["bert"])).eval())
    assert isinstance(again.encoder.layer[0].output.dense, Linear)
    assert torch.equal(output(model), output(again))


def test_untied_embeddings_are_not_tied_again(tmp_path):
    model = small_model("GPT2LMHeadModel")
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach() + 1)
    save(model, tmp_path / "a")
    again = load(tmp_path / "a")
    assert again.lm_head.weight is not again.transformer.wte.weight
    assert torch.equal(output(again), output(model))
