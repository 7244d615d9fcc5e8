# SPDX-License-Identifier: Apache-2.0
"""Other pruners' files: zeros in ordinary checkpoints become masks with a pattern."""

import json

import pytest
import torch
from artifact_tools import PATTERNS, generator, mask_for, random_linear, same_bits
from safetensors.torch import save_file
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io import adopt_zeros, load, save
from gossamer.io.pruners import read_dense_checkpoint
from gossamer.nn.layers import MaskedConv2d, MaskedLinear, MaskedOutProj
from gossamer.patterns import NM, Unstructured
from gossamer.zoo import MLP


def pruned(linear: nn.Linear, pattern, density=None) -> torch.Tensor:
    """Zero the weights of `linear` in place as another tool would; return the mask."""
    mask = mask_for(linear, pattern, density)
    with torch.no_grad():
        # A product, so that some zeros are -0.0.
        linear.weight.mul_(mask)
    return mask


def two_four() -> tuple[nn.Sequential, torch.Tensor]:
    model = nn.Sequential(random_linear((8, 16)), nn.ReLU(), random_linear((4, 8), seed=1))
    return model, pruned(model[0], NM(2, 4))


def test_masks_and_patterns_are_detected(tmp_path):
    model, mask = two_four()
    assert torch.signbit(model[0].weight[~mask]).any()
    save_file(model.state_dict(), tmp_path / "any.safetensors")
    found = read_dense_checkpoint(tmp_path / "any.safetensors")
    assert found.tensors.keys() == model.state_dict().keys()
    assert list(found.masks) == ["0.weight"]
    assert found.masks["0.weight"].pattern == NM(2, 4)
    assert found.masks["0.weight"].sparsity == 0.5
    assert torch.equal(found.masks["0.weight"].mask, mask)
    assert same_bits(found.tensors["2.weight"], model[2].weight)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_detected_patterns_accept_their_mask(tmp_path, pattern):
    linear = random_linear((16, 48))
    mask = pruned(linear, pattern, 0.3 if pattern.fixed_density is None else None)
    save_file(linear.state_dict(), tmp_path / "a.safetensors")
    found = read_dense_checkpoint(tmp_path / "a.safetensors").masks["weight"]
    assert torch.equal(found.mask, mask)
    found.pattern.validate(mask)


def test_min_sparsity_and_tensors_without_mask(tmp_path):
    few = torch.ones(10, 10)
    few[0, :4] = 0
    tensors = {
        "few": few,
        "none": torch.ones(4, 4),
        "all": torch.zeros(4, 4),
        "vector": torch.zeros(4),
        "integers": torch.zeros(4, 4, dtype=torch.int64),
        "empty": torch.zeros(0, 4),
        "conv": few.clone().reshape(5, 5, 2, 2),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    assert read_dense_checkpoint(tmp_path / "a.safetensors").masks == {}
    found = read_dense_checkpoint(tmp_path / "a.safetensors", min_sparsity=0.01).masks
    assert sorted(found) == ["conv", "few"]
    assert found["conv"].mask.shape == (5, 20)
    assert sorted(read_dense_checkpoint(tmp_path / "a.safetensors", 0.0).masks) == ["conv", "few"]


@pytest.mark.parametrize("value", [-0.1, 1.0, 50, float("nan")])
def test_bad_min_sparsity(tmp_path, value):
    with pytest.raises(InputError, match="min_sparsity"):
        read_dense_checkpoint(tmp_path, value)
    with pytest.raises(InputError, match="min_sparsity"):
        adopt_zeros(MLP((2, 2)), value)


def test_adopted_layers_compute_the_same_and_hold_their_mask():
    model, mask = two_four()
    conv = nn.Conv2d(2, 4, 3)
    with torch.no_grad():
        conv.weight[:, 0] = 0
    model.append(conv)
    x = torch.randn(3, 16, generator=generator())
    expected = model[:3](x)
    adopted = adopt_zeros(model)
    assert [layer.name for layer in adopted] == ["0", "3"]
    assert str(adopted[0].pattern) == "2:4"
    assert type(model[0]) is MaskedLinear
    assert type(model[3]) is MaskedConv2d
    assert torch.equal(model[0].mask(), mask)
    assert torch.equal(model[:3](x), expected)
    assert adopt_zeros(model) == []
    model[0].weight.data += 1
    assert torch.equal(model[0].to_dense().weight != 0, mask)


def test_attention_projection_is_adopted():
    model = nn.MultiheadAttention(8, 2)
    with torch.no_grad():
        model.out_proj.weight[:, ::2] = 0
    assert [layer.name for layer in adopt_zeros(model)] == ["out_proj"]
    assert type(model.out_proj) is MaskedOutProj


def test_nan_is_not_a_zero():
    model = nn.Sequential(random_linear((4, 8)))
    pruned(model[0], NM(1, 2))
    with torch.no_grad():
        model[0].weight[model[0].weight != 0] = float("nan")
    adopt_zeros(model)
    assert model[0].nnz == 16


def test_another_tools_checkpoint_becomes_a_packed_artifact(tmp_path):
    source, mask = two_four()
    save_file(source.state_dict(), tmp_path / "a.safetensors")
    fresh = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    model = load(tmp_path / "a.safetensors", model=fresh, detect_masks=True)
    save(model, tmp_path / "packed")
    again = load(tmp_path / "packed")
    assert str(again[0].pattern) == "2:4"
    assert torch.equal(again[0].mask(), mask)
    assert torch.equal(again[0].to_dense().weight, source[0].weight)


def sharded(folder, tensors, *, weight_map=None):
    folder.mkdir()
    names = sorted(tensors)
    files = {
        name: f"model-0000{1 + number % 2}-of-00002.safetensors"
        for number, name in enumerate(names)
    }
    for file in sorted(set(files.values())):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    index = {"metadata": {}, "weight_map": weight_map or files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return files


def test_sharded_directories_are_read(tmp_path):
    model, _ = two_four()
    sharded(tmp_path / "a", model.state_dict())
    found = read_dense_checkpoint(tmp_path / "a")
    assert found.tensors.keys() == model.state_dict().keys()
    assert list(found.masks) == ["0.weight"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: {**m, "x": "../../etc/passwd"}, "looks like a path"),
        (lambda m: {**m, "x": "/etc/passwd"}, "looks like a path"),
        (lambda m: {**m, "x": "absent.safetensors"}, "not there"),
        (lambda m: {**m, "x": "weights.bin"}, "no safetensors file"),
        (lambda m: {**m, "x": 3}, "no safetensors file"),
        (lambda m: {**m, "ghost": m["0.bias"]}, "in no file"),
        (
            lambda m: {k: v for k, v in m.items() if k != "0.bias"},
            "is not in model.safetensors.index",
        ),
        (lambda m: [1], "no weight_map"),
    ],
)
def test_bad_indices_of_shards_are_refused(tmp_path, change, text):
    model, _ = two_four()
    files = sharded(tmp_path / "good", model.state_dict())
    sharded(tmp_path / "bad", model.state_dict(), weight_map=change(files))
    with pytest.raises(ArtifactError, match=text):
        read_dense_checkpoint(tmp_path / "bad")


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(ArtifactError, match="no such file"):
        read_dense_checkpoint(tmp_path / "nothing")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ArtifactError, match="pickles and are not read"):
        read_dense_checkpoint(tmp_path)
    with pytest.raises(ArtifactError):
        read_dense_checkpoint(tmp_path / "pytorch_model.bin")


def test_unstructured_zeros_stay_unstructured():
    model = nn.Sequential(random_linear((9, 7)))
    mask = pruned(model[0], Unstructured(), 0.5)
    assert adopt_zeros(model)[0].pattern == Unstructured()
    assert torch.equal(model[0].mask(), mask)
