# SPDX-License-Identifier: Apache-2.0
"""float32 that bf16 holds exactly lies in files as bf16, and hostile manifests are refused."""

import pytest
import torch
from artifact_tools import assert_same_model, edit_manifest, sparse_linear
from safetensors.torch import load_file
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io import load, save
from gossamer.io.artifact import open_artifact
from gossamer.nn.rounding import round_layer


@pytest.fixture
def rounded():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).eval()
    round_layer(model[0], "bf16")
    return model


def _stored(path):
    with open_artifact(path) as artifact:
        entries = artifact.manifest.tensors
        return {name: getattr(entry, "stored", None) for name, entry in entries.items()}


def test_what_bf16_holds_takes_half_and_comes_back_as_float32(tmp_path, rounded):
    save(rounded, tmp_path / "a")
    assert _stored(tmp_path / "a") == {
        "0.weight": "bfloat16", "0.bias": None, "1.weight": None, "1.bias": None,
    }  # fmt: skip
    arrays = load_file(next((tmp_path / "a").glob("*.safetensors")))
    assert arrays["0.weight"].dtype is torch.bfloat16
    again = load(tmp_path / "a")
    assert again[0].weight.dtype is torch.float32
    assert_same_model(rounded, again)


def test_one_number_that_bf16_does_not_hold_keeps_all_of_them(tmp_path, rounded):
    with torch.no_grad():
        rounded[0].weight[3, 5] = 1 + 2**-10
    save(rounded, tmp_path / "a")
    assert _stored(tmp_path / "a")["0.weight"] is None
    assert_same_model(rounded, load(tmp_path / "a"))


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -0.0])
def test_special_numbers_come_back_to_the_bit(tmp_path, rounded, special):
    with torch.no_grad():
        rounded[0].weight[0, 0] = special
    save(rounded, tmp_path / "a")
    weight = load(tmp_path / "a")[0].weight
    assert torch.equal(weight.view(torch.int32), rounded[0].weight.view(torch.int32))


def test_dense_artifacts_hold_what_they_are_given(tmp_path, rounded):
    save(rounded, tmp_path / "a", format="dense")
    assert set(_stored(tmp_path / "a").values()) == {None}


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("0.weight", {"stored": None}, "the manifest says float32"),
        ("0.weight", {"dtype": "float64"}, "only plain float32"),
        ("1.weight", {"stored": "bfloat16"}, "the manifest says bfloat16"),
        ("0.weight", {"stored": "float16"}, "stored"),
    ],
)
def test_manifests_that_say_otherwise(tmp_path, rounded, name, change, said):
    save(rounded, tmp_path / "a")
    edit_manifest(tmp_path / "a", lambda content: content["tensors"][name].update(change))
    with pytest.raises(ArtifactError, match=said):
        load(tmp_path / "a")


@pytest.mark.parametrize("holder", ["masked", "compact"])
def test_bf16_is_not_for_masks(holder):
    with pytest.raises(InputError, match="without a mask"):
        round_layer(sparse_linear("bitmask", holder), "bf16")
