# SPDX-License-Identifier: Apache-2.0
"""Directories of families that no table of ours has: what is refused, before memory is taken."""

import json
import sys
from pathlib import Path

import pytest
import torch
from artifact_tools import rehash
from torch import nn

import gossamer
from gossamer.errors import ArtifactError, GossamerError, ResourceError
from gossamer.io import load, load_pretrained, save
from gossamer.io.huggingface import build_transformers
from gossamer.io.huggingface.auto_tables import _check_own_reader, auto_classes

transformers = pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[1] / "models"))
from cells import make  # noqa: E402
from model_rows import ARCHITECTURES  # noqa: E402


def row_of(title):
    return next(row for row in ARCHITECTURES if row.title == title)


def saved(title, folder):
    make(row_of(title)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Saved models by title, each made once."""
    made = {}

    def folder(title):
        if title not in made:
            made[title] = saved(title, tmp_path_factory.mktemp("models") / "hf")
        return made[title]

    return folder


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def refused(directories, title, changes, words):
    """The configuration with `changes` is refused by a sentence, without memory."""
    content = config_of(directories(title))
    for name, value in changes.items():
        place, _, field = name.rpartition(".")
        (content[place] if place else content)[field] = value
    with pytest.raises(ArtifactError, match=words):
        build_transformers(content["architectures"][0], content, max_tensors=1000)


@pytest.mark.parametrize(
    ("title", "changes", "words"),
    [
        ("Qwen3", {"num_key_value_heads": 2}, "num_key_value_heads is 2; expected a divisor of 3"),
        ("Qwen3", {"num_attention_heads": 0}, "num_attention_heads is 0"),
        ("Qwen3", {"hidden_size": -36}, "hidden_size is -36"),
        ("Qwen3", {"hidden_size": 36.5}, "hidden_size is 36.5"),
        ("Qwen3", {"vocab_size": 2**40}, "vocab_size is 1099511627776, the limit"),
        ("Qwen3", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ("Qwen3", {"num_hidden_layers": -2}, "num_hidden_layers is -2"),
        ("Qwen3", {"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0"),
        ("Qwen3", {"hidden_act": "__import__('os')"}, "refuses it"),
        ("Qwen3", {"dtype": "load"}, "is none of"),
        ("Gemma 3", {"sliding_window": -5}, "sliding_window is -5; expected nothing below 0"),
        ("Gemma 3", {"sliding_window": 4.5}, "sliding_window is 4.5; expected a whole number"),
        ("Gemma 3", {"sliding_window": None}, "cannot run"),
        ("Gemma 3", {"model_type": ["gemma3_text"]}, "needs model_type 'gemma3_text'"),
        ("ModernBERT", {"num_attention_heads": 5}, r"config\.json"),
        ("T5", {"num_layers": 10**8}, "num_layers is 100000000"),
        ("T5", {"num_decoder_layers": 10**8}, "num_decoder_layers is 100000000"),
        ("Mixtral", {"num_local_experts": 10**8}, "num_local_experts is 100000000"),
        ("ViT", {"image_size": [30, 0]}, r"image_size is \[30, 0\]"),
        ("ViT", {"patch_size": 0}, "patch_size is 0"),
        ("Swin", {"depths": [1, 10**8]}, "depths is 100000000"),
        ("Swin", {"window_size": -4}, "window_size is -4"),
        ("Swin", {"depths": [40000, 2]}, "more than 21000 modules"),
        ("Whisper", {"decoder_attention_heads": 5}, r"config\.json"),
        ("CLIP", {"vision_config.num_attention_heads": 0}, "num_attention_heads is 0"),
        ("CLIP", {"vision_config.num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ("CLIP", {"text_config.hidden_size": "a"}, "hidden_size is 'a'"),
        ("Mamba", {"hidden_size": 0}, "hidden_size is 0"),
    ],
)
def test_numbers_that_cannot_be(directories, title, changes, words):
    refused(directories, title, changes, words)


def test_the_configurations_themselves_pass(directories):
    for title in ("Qwen3", "Gemma 3", "ModernBERT", "T5", "ViT", "Swin", "Whisper", "CLIP"):
        content = config_of(directories(title))
        name = content["architectures"][0]
        assert type(build_transformers(name, content, max_tensors=1000)).__name__ == name


def test_a_class_that_nobody_knows(directories, tmp_path):
    content = config_of(directories("Qwen3"))
    for name in (
        "Qwen9ForCausalLM",
        "os.system",
        "AutoModel",
        "PreTrainedModel",
        "TrainingArguments",
    ):
        with pytest.raises(ArtifactError, match="not a known transformers class"):
            build_transformers(name, content, max_tensors=100)
    with pytest.raises(ArtifactError, match=r"needs model_type 'qwen3', config\.json has 'llama'"):
        build_transformers("Qwen3ForCausalLM", content | {"model_type": "llama"}, max_tensors=100)


def test_remote_code_is_named_and_not_run(directories, tmp_path):
    folder = saved("Qwen3", tmp_path / "hf")
    marker = tmp_path / "marker"
    (folder / "modeling_own.py").write_text(f"open({str(marker)!r}, 'w')")
    changes = {"auto_map": {"AutoModel": "modeling_own.Own"}, "architectures": ["OwnModel"]}
    (folder / "config.json").write_text(json.dumps(config_of(folder) | changes))
    with pytest.raises(ArtifactError, match=r"code of its own \(auto_map\), which is never run"):
        load(folder)
    # With a class that is known, the map is not looked at.
    changes["architectures"] = ["Qwen3ForCausalLM"]
    changes |= {"_attn_implementation": "org/kernel", "experts_implementation": "org/kernel"}
    (folder / "config.json").write_text(json.dumps(config_of(folder) | changes))
    loaded = load(folder)
    assert not hasattr(loaded.config, "auto_map")
    assert loaded.config._attn_implementation in ("sdpa", "eager")
    assert not marker.exists()


def test_remote_code_inside_of_a_configuration_is_dropped(directories):
    content = config_of(directories("CLIP"))
    content["vision_config"] |= {
        "auto_map": {"AutoModel": "evil.Evil"},
        "_attn_implementation": "org/kernel",
    }
    model = build_transformers("CLIPModel", content, max_tensors=1000)
    assert not hasattr(model.config.vision_config, "auto_map")
    assert model.config.vision_config._attn_implementation in ("sdpa", "eager", None)


def test_models_of_other_packages_and_of_the_network_are_refused():
    detr = {"model_type": "detr", "backbone": "resnet50", "use_timm_backbone": True}
    with pytest.raises(ArtifactError, match="made by another package"):
        build_transformers("DetrModel", detr, max_tensors=1000)
    timm = {"model_type": "timm_wrapper", "architecture": "resnet18"}
    with pytest.raises(ArtifactError, match="made by another package"):
        build_transformers("TimmWrapperModel", timm, max_tensors=1000)
    inside = {"model_type": "detr", "backbone_config": {"model_type": "timm_backbone"}}
    with pytest.raises(ArtifactError, match="made by another package"):
        build_transformers("DetrModel", inside, max_tensors=1000)


def test_a_class_whose_packages_are_missing_is_named():
    class StandIn:
        """What transformers has in the place of such a class is no model."""

    with pytest.raises(ArtifactError, match="needs packages that are not installed"):
        _check_own_reader(StandIn, "StandIn", "config.json")


def test_a_wrong_shard_index_is_named(tmp_path):
    make(row_of("Qwen3")).save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    index = tmp_path / "hf" / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    names, files = sorted(content["weight_map"]), sorted(set(content["weight_map"].values()))
    wrong = {
        "there is no such file": {**content["weight_map"], names[0]: "model-9.safetensors"},
        "is not in model.safetensors.index.json": {
            **content["weight_map"],
            names[0]: next(f for f in files if f != content["weight_map"][names[0]]),
        },
        "in no file": {**content["weight_map"], "surplus.weight": files[0]},
        "no plain file name": {**content["weight_map"], names[0]: "../other.safetensors"},
    }
    for words, weight_map in wrong.items():
        index.write_text(json.dumps(content | {"weight_map": weight_map}))
        with pytest.raises(GossamerError) as caught:
            load(tmp_path / "hf")
        assert str(tmp_path / "hf") in str(caught.value), words
    index.write_text(json.dumps(content))
    load(tmp_path / "hf")


def test_buffers_that_no_file_holds_are_counted_before_they_are_made(tmp_path):
    """GPT-NeoX and GPT-J make tables of positions of whatever length the file says."""
    model = make(row_of("GPT-J"))
    gossamer.sparsify(model, sparsity=0.5)
    save(model, tmp_path / "a")
    config = config_of(tmp_path / "a") | {"n_positions": 2**31 - 1}
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    rehash(tmp_path / "a")
    with pytest.raises(ResourceError, match="bytes of memory"):
        load(tmp_path / "a")


def test_a_configuration_that_lies_about_its_weights(tmp_path):
    folder = saved("Qwen3", tmp_path / "hf")
    for changes in ({"vocab_size": 2**30}, {"hidden_size": 2**20}, {"intermediate_size": 2**30}):
        content = config_of(folder)
        (folder / "config.json").write_text(json.dumps(content | changes))
        with pytest.raises(GossamerError, match=r"needs \d+|bytes of memory"):
            load_pretrained(folder)
        (folder / "config.json").write_text(json.dumps(content))


def test_fields_of_older_files_are_not_lost(directories):
    """Undeclared, and read by the classes all the same: a model without them computes otherwise."""
    content = config_of(directories("T5")) | {"scale_decoder_outputs": False}
    t5 = build_transformers("T5ForConditionalGeneration", content, max_tensors=1000)
    assert t5.config.scale_decoder_outputs is False
    assert t5.config.decoder_start_token_id == 0
    content = {k: v for k, v in config_of(directories("Phi")).items() if "rope" not in k}
    content |= {"partial_rotary_factor": 1.0, "rope_theta": 777.0}
    phi = build_transformers("PhiForCausalLM", content, max_tensors=1000)
    assert phi.config.rope_parameters["partial_rotary_factor"] == 1.0
    assert phi.config.rope_parameters["rope_theta"] == 777.0


def test_methods_of_a_configuration_cannot_be_named_by_a_file(directories):
    content = config_of(directories("Qwen3")) | {"to_dict": 1, "__class__": 2, "a b": 3}
    model = build_transformers("Qwen3ForCausalLM", content, max_tensors=1000)
    assert callable(model.config.to_dict)
    assert isinstance(model, nn.Module)


def test_every_class_of_the_closed_table_is_in_the_auto_tables():
    from gossamer.io.huggingface.transformers_models import TRANSFORMERS_CLASSES

    for name, model_type in TRANSFORMERS_CLASSES.items():
        assert model_type in auto_classes()[name]


def test_falcon_has_ordinary_linears_that_compute_the_same(tmp_path):
    stock = make(row_of("Falcon"))
    stock.save_pretrained(tmp_path / "hf")
    loaded = load(tmp_path / "hf")
    layer = loaded.transformer.h[0].self_attention.query_key_value
    assert type(layer) is nn.Linear
    ids = torch.arange(7)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, stock(ids).logits)
    save(loaded, tmp_path / "dense", format="dense")
    again = transformers.FalconForCausalLM.from_pretrained(tmp_path / "dense").eval()
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, stock(ids).logits)
