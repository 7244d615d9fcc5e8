# SPDX-License-Identifier: Apache-2.0
"""Zeros of other tools' files are masks for every reader alike; few zeros are just weights."""

import json

import pytest
import torch
from gguf_tools import Gguf, llama_settings, llama_tensors, tiny_llama
from onnx_tools import Maker
from safetensors.torch import save_file
from torch import nn

import gossamer
from gossamer.cli.main import main
from gossamer.cli.models import load_function, load_source
from gossamer.io import adopt_zeros, load, save
from gossamer.io.artifact import open_artifact
from gossamer.io.pruners.dense_checkpoint import DEFAULT_MIN_SPARSITY
from gossamer.nn.layers import CompactWeight, MaskedWeight


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))


def prune_layers(model: nn.Module, many: str, few: str) -> torch.Tensor:
    """2:4 in the layer `many`, a tenth of zeros in `few`; the mask of the first."""
    with torch.no_grad():
        model.get_submodule(many).weight[:, ::2] = 0
        model.get_submodule(few).weight.view(-1)[::10] = 0
    return model.get_submodule(many).weight != 0


# Every maker writes a file and returns (path, model to fill or None, pruned layer, layer with few).
def hugging_face(folder):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 30}
    model = transformers.BertModel(transformers.BertConfig(**sizes, num_attention_heads=2))
    many, few = "encoder.layer.0.intermediate.dense", "encoder.layer.0.output.dense"
    mask = prune_layers(model, many, few)
    model.save_pretrained(folder / "hf")
    return folder / "hf", None, many, few, mask


def gguf(folder):
    pytest.importorskip("gguf")
    model = tiny_llama()
    many, few = "model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"
    mask = prune_layers(model, many, few)
    path = Gguf(llama_settings(), llama_tensors(model)).write(folder / "m.gguf")
    return path, None, many, few, mask


def onnx(folder):
    model = two_layers()
    mask = prune_layers(model, "0", "2")
    make = Maker()
    x = make.input("x", ["n", 16])
    for name in ("many", "few"):
        weight = model[2 * (name == "few")].weight.detach().T.contiguous().numpy()
        x = make.op("MatMul", x, make.const(weight, f"{name}.weight"))
    make.result(x, "y")
    return make.write(folder / "m.onnx"), None, "many", "few", mask


def safetensors(folder):
    model = two_layers()
    mask = prune_layers(model, "0", "2")
    save_file(model.state_dict(), folder / "m.safetensors")
    return folder / "m.safetensors", two_layers(), "0", "2", mask


def dense_artifact(folder):
    model = two_layers()
    mask = prune_layers(model, "0", "2")
    save(model, folder / "a", format="dense")
    return folder / "a", None, "0", "2", mask


MAKERS = [hugging_face, gguf, onnx, safetensors, dense_artifact]


def check(model, many, few, mask):
    layer = model.get_submodule(many)
    assert isinstance(layer, MaskedWeight | CompactWeight)
    assert torch.equal(layer.mask(), mask)
    assert not isinstance(model.get_submodule(few), MaskedWeight | CompactWeight)


@pytest.mark.parametrize("make", MAKERS)
def test_every_reader_takes_zeros_as_masks(make, tmp_path, capsys):
    path, fill, many, few, mask = make(tmp_path)
    check(load(path, fill), many, few, mask)
    save(load(path, fill), tmp_path / "saved")
    with open_artifact(tmp_path / "saved") as artifact:
        kinds = {name: entry.kind for name, entry in artifact.manifest.tensors.items()}
    assert kinds[f"{many}.weight"] == "sparse"
    assert kinds[f"{few}.weight"] == "dense"
    assert main(["convert", str(path), str(tmp_path / "converted"), "--json"]) == 0
    assert many in json.loads(capsys.readouterr().out)["sparse_layers"]
    check(load(tmp_path / "converted", fill), many, few, mask)
    if fill is not None:
        return  # without an architecture commands cannot open it
    told = []
    check(load_source(str(path), say=told.append).model, many, few, mask)
    check(load_function(str(path), told.append)(), many, few, mask)
    assert told == 2 * [
        f"{path.name}: exact zeros of 1 layers (50% of their weights, 2:4) are taken as their"
        " masks."
    ]


def test_a_reader_can_be_told_not_to(tmp_path):
    path, _, many, few, _ = dense_artifact(tmp_path)
    for model in (load(path, detect_masks=False), load_source(str(path), detect_masks=False).model):
        assert type(model.get_submodule(many)) is type(model.get_submodule(few)) is nn.Linear


def test_a_packed_artifact_knows_its_masks(tmp_path):
    model = two_layers()
    prune_layers(model, "0", "2")
    save(model, tmp_path / "a")
    assert type(load(tmp_path / "a")[0]) is nn.Linear
    assert isinstance(load(tmp_path / "a", detect_masks=True)[0], MaskedWeight)


def test_prune_and_train_go_on_within_the_masks_of_a_directory(tmp_path, capsys):
    path, _, many, _, mask = hugging_face(tmp_path)
    arguments = ["prune", str(path), "-o", str(tmp_path / "out"), "--sparsity", "0.75"]
    assert main([*arguments, "--tokens", "4"]) == 0
    shown = capsys.readouterr()
    assert "are taken as their masks" in " ".join((shown.out + shown.err).split())
    pruned = load(tmp_path / "out").get_submodule(many)
    assert not bool((pruned.mask() & ~mask).any())
    assert pruned.density == pytest.approx(0.25, abs=0.01)


def test_the_edge_between_weights_and_masks():
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    with torch.no_grad():
        model[0].weight.view(-1)[:30] = 0
        model[1].weight.view(-1)[:29] = 0
    assert [layer.name for layer in adopt_zeros(model)] == ["0"]
    assert DEFAULT_MIN_SPARSITY == 0.3


def test_tied_weights_share_one_mask_or_stay_as_they_are():
    model = nn.ModuleDict({n: nn.Linear(4, 4) for n in ("a", "b", "head")})
    model["table"] = nn.Embedding(4, 4)
    model["b"].weight, model["head"].weight = model["a"].weight, model["table"].weight
    with torch.no_grad():
        model["a"].weight[:, ::2] = 0
        model["table"].weight[:, ::2] = 0
    assert [layer.name for layer in adopt_zeros(model)] == ["a", "b"]
    assert model["a"].mask_bits is model["b"].mask_bits
    assert type(model["head"]) is nn.Linear
    gossamer.compact(model)
    assert model["a"].values is model["b"].values
    alone = nn.Linear(4, 4)
    nn.init.zeros_(alone.weight[:2].detach())
    assert adopt_zeros(alone) == []


def test_a_state_dict_of_torch_prune_keeps_the_masks_it_stores(tmp_path):
    model = two_layers()
    nn.utils.prune.random_unstructured(model[0], "weight", 0.1)
    mask = model[0].weight_mask.bool()
    save_file(model.state_dict(), tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors", two_layers())
    assert torch.equal(loaded[0].mask(), mask)
