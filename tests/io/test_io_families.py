# SPDX-License-Identifier: Apache-2.0
"""All families as local Hugging Face directories: loaded, pruned, compiled; and what is refused."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_io_huggingface import IDS, output, small_model
from torch import nn

import gossamer
from gossamer.errors import ArtifactError, GossamerError, ResourceError
from gossamer.io import load, load_pretrained, save
from gossamer.running.packed import PackedLinear

FAMILIES = [
    "BertForSequenceClassification", "RobertaForMaskedLM", "DistilBertModel",
    "OPTForCausalLM", "LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM",
]  # fmt: skip


@pytest.mark.parametrize("shards", ["1GB", "6KB"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_directory_is_loaded_pruned_compiled_and_saved(tmp_path, name, shards):
    stock = small_model(name)
    stock.save_pretrained(tmp_path / "hf", max_shard_size=shards)
    assert (len(list((tmp_path / "hf").glob("*.safetensors"))) > 1) == (shards == "6KB")
    model = load(tmp_path / "hf")
    assert torch.equal(output(model), output(stock))
    gossamer.sparsify(model, sparsity=0.5)
    expected = output(model)
    fast = gossamer.compile(model, tokens=IDS.numel(), kernel="panel")
    assert sum(isinstance(m, PackedLinear) for m in fast.modules()) >= 4
    torch.testing.assert_close(output(fast), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(output(model), expected)
    save(model, tmp_path / "packed")
    assert torch.equal(output(load(tmp_path / "packed")), expected)


@pytest.mark.parametrize("shards", ["1GB", "6KB"])
def test_gpt2_is_loaded_with_linears_and_pruned(tmp_path, shards):
    stock = small_model("GPT2LMHeadModel")
    stock.save_pretrained(tmp_path / "hf", max_shard_size=shards)
    model = load(tmp_path / "hf")
    torch.testing.assert_close(output(gossamer.compile(model, tokens=6)), output(stock))
    gossamer.sparsify(model, sparsity=0.5)
    expected = output(model)
    save(model, tmp_path / "packed")
    assert torch.equal(output(load(tmp_path / "packed")), expected)


def test_compile_shares_what_it_does_not_replace_and_frees_in_place():
    model = small_model("BertModel")
    gossamer.sparsify(model, sparsity=0.5)
    fast = gossamer.compile(model, tokens=6, kernel="panel")
    for part in ("embeddings.word_embeddings", "encoder.layer.0.output.LayerNorm"):
        own, other = (m.get_submodule(part).weight for m in (model, fast))
        assert own.data_ptr() == other.data_ptr()
    expected = output(model)
    same = gossamer.compile(model, tokens=6, kernel="panel", inplace=True)
    assert same is model
    assert isinstance(model.encoder.layer[0].output.dense, PackedLinear)
    assert all(p.ndim < 2 or "embeddings" in n for n, p in model.named_parameters())
    torch.testing.assert_close(output(model), expected, rtol=1e-4, atol=1e-5)


def test_a_model_transformers_does_not_know_still_gets_its_linears():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.ModuleDict({"a": nn.Linear(32, 48), "b": nn.Linear(48, 16)})

        def forward(self, x, *, twice):
            return self.mix["b"](torch.relu(self.mix["a"](x))) * (2 if twice else 1)

    model = Mine()
    gossamer.sparsify(model, sparsity=0.7)
    fast = gossamer.compile(model, tokens=5, kernel="panel")
    assert {type(m) for m in fast.mix.values()} == {PackedLinear}
    x = torch.randn(5, 32)
    torch.testing.assert_close(fast(x, twice=True), model(x, twice=True), rtol=1e-4, atol=1e-5)


# What is refused.


@pytest.fixture(params=["BertModel", "GPT2LMHeadModel", "LlamaForCausalLM"])
def saved(tmp_path, request):
    small_model(request.param).save_pretrained(tmp_path / "hf")
    return tmp_path / "hf"


def edit_config(folder, **changes):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | changes))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refused(folder, *words):
    with pytest.raises(ArtifactError) as caught:
        load_pretrained(folder)
    for word in (str(folder), *words):
        assert word in str(caught.value)


def test_a_missing_tensor_is_named(saved):
    name = sorted(load_file(saved / "model.safetensors"))[-1]
    edit_tensors(saved, lambda tensors: tensors.pop(name))
    refused(saved, "missing", name.removeprefix("transformer.").removeprefix("model."))


def test_an_extra_tensor_is_named(saved):
    edit_tensors(saved, lambda tensors: tensors.update(surplus=torch.ones(3)))
    refused(saved, "unexpected", "surplus")


def test_a_wrong_shape_is_named_with_both_shapes(saved):
    tensors = load_file(saved / "model.safetensors")
    name = next(key for key in sorted(tensors) if tensors[key].ndim == 2 and "embed" not in key
                and "wte" not in key and "wpe" not in key and "lm_head" not in key)  # fmt: skip
    shape = list(tensors[name].shape)
    edit_tensors(saved, lambda t: t.update({name: torch.ones(shape[0], shape[1] + 1)}))
    refused(saved, name.split(".", 1)[1], str(shape), str([shape[0], shape[1] + 1]))


@pytest.mark.parametrize("factor", [2, 3])
def test_a_configuration_that_lies_is_found_out(saved, factor):
    config = json.loads((saved / "config.json").read_text())
    width = "n_embd" if "n_embd" in config else "hidden_size"
    edit_config(saved, **{width: config[width] * factor})
    refused(saved, "expected", str(config[width] * factor), str(config[width]))
    edit_config(saved, **{width: config[width], "vocab_size": config["vocab_size"] + 7})
    refused(saved, "expected", str(config["vocab_size"] + 7), str(config["vocab_size"]))


def test_more_and_fewer_layers_than_there_are(saved):
    config = json.loads((saved / "config.json").read_text())
    depth = "n_layer" if "n_layer" in config else "num_hidden_layers"
    edit_config(saved, **{depth: 3})
    refused(saved, "missing")
    edit_config(saved, **{depth: 1})
    refused(saved, "unexpected")


def test_truncated_files(saved):
    file = saved / "model.safetensors"
    whole = file.read_bytes()
    (header,) = struct.unpack("<Q", whole[:8])
    for end in (0, 4, 8, 8 + header // 2, 8 + header, len(whole) - 1):
        file.write_bytes(whole[:end])
        refused(saved, "model.safetensors")


def test_pickles_are_not_read(saved):
    (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
    refused(saved, "pickle")


def test_a_shard_that_is_missing_or_doubled(tmp_path):
    small_model("OPTForCausalLM").save_pretrained(tmp_path / "hf", max_shard_size="6KB")
    shards = sorted((tmp_path / "hf").glob("*.safetensors"))
    whole = shards[0].read_bytes()
    shards[0].unlink()
    refused(tmp_path / "hf", shards[0].name)
    shards[0].write_bytes(shards[1].read_bytes())
    refused(tmp_path / "hf", shards[0].name, "is not in")
    shards[0].write_bytes(whole[:-5])
    refused(tmp_path / "hf", shards[0].name)


def test_types_that_cannot_be_weights(saved):
    tensors = load_file(saved / "model.safetensors")
    name = sorted(tensors)[0]
    edit_tensors(saved, lambda t: t.update({name: t[name].to(torch.int64)}))
    with pytest.raises(GossamerError, match=name.split(".", 1)[1]):
        load_pretrained(saved)


def test_memory_is_asked_first(saved):
    with pytest.raises(ResourceError, match="max_bytes"):
        load_pretrained(saved, max_bytes=100)
