# SPDX-License-Identifier: Apache-2.0
"""Weights on a grid are stored as integers, come back to the bit, and hostile files are refused."""

import pytest
import torch
from artifact_tools import (
    FORMAT_CASES,
    assert_same_model,
    contents,
    edit_manifest,
    force_format,
    replace_arrays,
    sparse_linear,
)
from safetensors.torch import load_file
from torch import nn

import gossamer
from gossamer.errors import ArtifactError, InputError
from gossamer.io import load, save
from gossamer.io.artifact import open_artifact
from gossamer.nn import Linear, MaskedLinear
from gossamer.nn.rounding import round_layer
from gossamer.zoo import TinyEncoder


def _entries(path):
    with open_artifact(path) as artifact:
        return artifact.manifest.tensors


def _bytes(path):
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


@pytest.mark.parametrize("to", ["int8", "int4"])
@pytest.mark.parametrize("holder", ["masked", "compact"])
@pytest.mark.parametrize("format_name", FORMAT_CASES)
def test_every_format_holds_codes(tmp_path, monkeypatch, format_name, holder, to):
    force_format(monkeypatch, format_name)
    model = nn.Sequential(sparse_linear(format_name, holder)).eval()
    mask = model[0].mask()
    round_layer(model[0], to)
    save(model, tmp_path / "a")
    entry = _entries(tmp_path / "a")["0.weight"]
    assert (entry.format, entry.holder) == (format_name, holder)
    assert entry.codes.bits == {"int8": 8, "int4": 4}[to]
    again = load(tmp_path / "a")
    assert_same_model(model, again)
    assert torch.equal(again[0].mask(), mask)
    save(again, tmp_path / "b")
    first, second = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert all(first[name] == second[name] for name in first.keys() - {"card.md"})


@pytest.mark.parametrize("to", ["int8", "int4", "int4_offset"])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Linear(63, 40),
        lambda: nn.Embedding(50, 33),
        lambda: nn.Conv2d(16, 8, 3),
        lambda: nn.Linear(1024, 1, bias=False),
    ],
)
def test_dense_layers_hold_codes(tmp_path, layer, to):
    model = nn.Sequential(layer()).eval()
    round_layer(model[0], to)
    size = model[0].weight.numel()
    save(model, tmp_path / "a")
    assert _entries(tmp_path / "a")["0.weight"].codes is not None
    assert _entries(tmp_path / "a")["0.weight"].codes.offsets == (to == "int4_offset")
    assert_same_model(model, load(tmp_path / "a"))
    assert_same_model(model, load(tmp_path / "a", model=nn.Sequential(layer()).eval()))
    bits = {"int8": 8, "int4": 4, "int4_offset": 5}[to]
    assert _bytes(tmp_path / "a") < size * (bits / 8 + 0.2) + 1000


def test_what_is_not_rounded_is_stored_as_it_is(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64)).eval()
    save(model, tmp_path / "a")
    assert _entries(tmp_path / "a")["0.weight"].codes is None
    round_layer(model[0], "int8")
    with torch.no_grad():
        model[0].weight[63, 1] += 1e-4
    save(model, tmp_path / "b")
    assert _entries(tmp_path / "b")["0.weight"].codes is None
    assert_same_model(model, load(tmp_path / "b"))


def test_dense_artifacts_stay_readable_by_anybody(tmp_path):
    model = nn.Sequential(nn.Linear(64, 64)).eval()
    round_layer(model[0], "int4")
    save(model, tmp_path / "a", format="dense")
    stored = load_file(tmp_path / "a" / "model.safetensors")
    assert torch.equal(stored["0.weight"], model[0].weight)


def test_a_tied_table_is_stored_once(tmp_path):
    model = nn.ModuleDict({"table": nn.Embedding(64, 32), "head": nn.Linear(32, 64, bias=False)})
    model["head"].weight = model["table"].weight
    round_layer(model["table"], "int4")
    save(model.eval(), tmp_path / "a")
    again = load(tmp_path / "a")
    assert again["head"].weight is again["table"].weight
    assert_same_model(model, again)


def test_a_compiled_model_computes_with_the_stored_weights(tmp_path):
    torch.manual_seed(0)
    model = TinyEncoder(50, 4, width=32, num_layers=1, num_heads=2).eval()
    gossamer.sparsify(model, sparsity=0.8)
    for layer in model.modules():
        if isinstance(layer, MaskedLinear):
            round_layer(layer, "int8")
    gossamer.compact(model)
    save(model, tmp_path / "a")
    before = gossamer.compile(model, tokens=64, precision="int8", kernel="int8_panel")
    after = gossamer.compile(load(tmp_path / "a"), tokens=64, precision="int8", kernel="int8_panel")
    ids = torch.randint(0, 50, (2, 32))
    assert torch.equal(before(ids), after(ids))


def _saved(tmp_path, to="int8", sparse=True):
    layer = sparse_linear("bitmask", "compact") if sparse else nn.Linear(64, 64)
    round_layer(layer, to)
    save(nn.Sequential(layer), tmp_path / "a")
    return tmp_path / "a", dict(load_file(next((tmp_path / "a").glob("*.safetensors"))))


@pytest.mark.parametrize("to", ["int8", "int4"])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_scales_that_are_no_scales(tmp_path, to, sparse, bad):
    path, arrays = _saved(tmp_path, to, sparse)
    scales = arrays["0.weight::scales"].clone()
    scales[-1, -1] = bad
    replace_arrays(path, {"0.weight::scales": scales})
    with pytest.raises(ArtifactError, match="scale is negative, NaN"):
        load(path)


@pytest.mark.parametrize("to", ["int8", "int4"])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("array", ["codes", "scales"])
def test_arrays_of_another_size_or_type(tmp_path, to, sparse, array):
    path, arrays = _saved(tmp_path, to, sparse)
    key = f"0.weight::{array}"
    for wrong in (arrays[key][:-1], arrays[key].float(), arrays[key].flatten()[None, None]):
        replace_arrays(path, {key: wrong})
        with pytest.raises(ArtifactError, match=array):
            load(path)


def test_codes_below_the_lowest(tmp_path):
    path, arrays = _saved(tmp_path)
    codes = arrays["0.weight::codes"].clone()
    codes[3] = -128
    replace_arrays(path, {"0.weight::codes": codes})
    with pytest.raises(ArtifactError, match="below -127"):
        load(path)


@pytest.mark.parametrize(
    "change", [{"bits": 4}, {"span": 7}, {"span": 0}, {"shape": [7]}, {"x": 1}]
)
@pytest.mark.parametrize("sparse", [True, False])
def test_descriptions_that_do_not_fit(tmp_path, change, sparse):
    path, _ = _saved(tmp_path, sparse=sparse)
    edit_manifest(path, lambda content: content["tensors"]["0.weight"]["codes"].update(change))
    with pytest.raises(ArtifactError):
        load(path)


@pytest.mark.parametrize("sparse", [True, False])
def test_codes_of_other_types_than_float32(tmp_path, sparse):
    path, _ = _saved(tmp_path, sparse=sparse)
    edit_manifest(path, lambda content: content["tensors"]["0.weight"].update(dtype="bfloat16"))
    with pytest.raises(ArtifactError, match="float32"):
        load(path)


@pytest.mark.parametrize("sparse", [True, False])
def test_truncated_files(tmp_path, sparse):
    path, _ = _saved(tmp_path, sparse=sparse)
    file = next(path.glob("*.safetensors"))
    raw = file.read_bytes()
    for length in (0, 7, 100, len(raw) // 2, len(raw) - 1):
        file.write_bytes(raw[:length])
        with pytest.raises(ArtifactError):
            load(path)


def test_compact_layers_round_like_masked_ones():
    masked = sparse_linear("bitmask", "masked")
    compact = Linear.from_dense(masked.to_dense(), masked.mask(), masked.pattern)
    for layer in (masked, compact):
        round_layer(layer, "int4")
    assert torch.equal(compact.to_dense().weight, masked.to_dense().weight)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_offsets_that_are_no_numbers(tmp_path, bad):
    path, arrays = _saved(tmp_path, "int4_offset", sparse=False)
    offsets = arrays["0.weight::offsets"].clone()
    offsets[-1, -1] = bad
    replace_arrays(path, {"0.weight::offsets": offsets})
    with pytest.raises(ArtifactError, match="offset is NaN or infinite"):
        load(path)


@pytest.mark.parametrize("to", ["int8", "int4"])
@pytest.mark.parametrize("sparse", [True, False])
def test_offsets_where_there_are_none(tmp_path, to, sparse):
    path, _ = _saved(tmp_path, to, sparse)
    edit_manifest(
        path, lambda content: content["tensors"]["0.weight"]["codes"].update(offsets=True)
    )
    with pytest.raises(ArtifactError, match=r"offsets|scales"):
        load(path)


def test_offsets_are_not_for_masks():
    with pytest.raises(InputError, match="without a mask"):
        round_layer(sparse_linear("bitmask", "compact"), "int4_offset")
