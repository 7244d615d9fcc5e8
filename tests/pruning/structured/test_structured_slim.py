# SPDX-License-Identifier: Apache-2.0
"""Cutting units out: equal to masking them, on every family, and through a file."""

import json

import pytest
import torch
from structured_models import FAMILY_NAMES, FILTERS, HEADS, UNEVEN, make_ids, make_model, run
from torch import nn

import gossamer
from gossamer.errors import ArtifactError, GossamerError, InputError, TargetError
from gossamer.io.onnx import export_onnx
from gossamer.io.safe_files.manifests import digest_of
from gossamer.nn.surgery.slimming import unit_counts
from gossamer.pruning.structured import find_units, slim
from gossamer.pruning.structured.units import mask_factors, scaled_units


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_masked_equals_slim_and_the_file_keeps_it(name, tmp_path):
    model, ids = make_model(name), make_ids()
    groups = find_units(model)
    assert [group.count for group in groups] == [HEADS, FILTERS] * 3
    dense = run(model, ids)
    with torch.no_grad():
        with scaled_units(groups, mask_factors(groups, UNEVEN)):
            masked = run(model, ids)
        assert (masked - dense).abs().max() > 1e-3
        assert slim(model, UNEVEN) is model
        found = run(model, ids)
        torch.testing.assert_close(found, masked, rtol=0, atol=1e-5)
        gossamer.save(model, tmp_path / "slim")
        loaded = gossamer.load(tmp_path / "slim")
        assert unit_counts(loaded) == [(2, 3), (0, 0), (3, FILTERS - 7)]
        torch.testing.assert_close(run(loaded, ids), found, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt"])
def test_generation_with_a_cache_equals_none(name):
    model, ids = make_model(name), make_ids(1, 5)
    # The first block, from which transformers reads the position, has no heads.
    slim(model, [[], [0], [1], [], [0, 3], [2, 5]])
    texts = [
        model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=cache)
        for cache in (True, False)
    ]
    assert torch.equal(*texts)


def test_everything_kept_changes_nothing():
    model, ids = make_model("bert"), make_ids()
    before, dense = model.encoder.layer[0].output.dense.weight, run(model, ids)
    slim(model, [list(range(group.count)) for group in find_units(model)])
    assert model.encoder.layer[0].output.dense.weight is before
    assert torch.equal(run(model, ids), dense)


def test_slim_twice_and_gradients_flow():
    model, ids = make_model("zoo"), make_ids()
    slim(model, UNEVEN)
    slim(model, [[1], [0, 2], [], [], [0, 2], [5]])
    assert unit_counts(model) == [(1, 2), (0, 0), (2, 1)]
    run(model, ids).sum().backward()
    assert model.layers[0].down.weight.grad.shape == (16, 2)


@pytest.mark.parametrize(
    ("slim_blocks", "message"),
    [
        ([{"heads": 1, "filters": 1}], "has 1 blocks, the model 3"),
        ([{"heads": 5, "filters": 1}] * 3, "5 heads"),
        ([{"heads": 1, "filters": 10**9}] * 3, "filters"),
        ([{"heads": -1, "filters": 1}] * 3, "greater than or equal to 0"),
        ([{"heads": True, "filters": 1}] * 3, "integer"),
        ([{"heads": 1, "filters": 1, "code": "os"}] * 3, "not permitted"),
        ([{"heads": 1, "filters": 3}] * 3, "shape"),
    ],
)
@pytest.mark.parametrize("name", ["bert", "zoo"])
def test_hostile_unit_counts_are_refused(name, slim_blocks, message, tmp_path):
    model = make_model(name)
    slim(model, UNEVEN)
    gossamer.save(model, tmp_path / "a")
    path = tmp_path / "a" / "manifest.json"
    content = json.loads(path.read_text())
    del content["digest"]
    content["architecture"]["slim"] = slim_blocks
    path.write_text(json.dumps({**content, "digest": digest_of(content)}))
    with pytest.raises(ArtifactError, match=message):
        gossamer.load(tmp_path / "a")


def test_bad_unit_lists_are_refused():
    model = make_model("zoo")
    with pytest.raises(InputError, match="one list per group"):
        slim(model, [[0]])
    for wrong in ([HEADS], [-1], [1, 0], [1, 1]):
        with pytest.raises(TargetError, match="ascending"):
            slim(model, [wrong, *UNEVEN[1:]])


def test_foreign_models_are_refused_by_name():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 1)
    with pytest.raises(TargetError, match=r"in_proj_weight.*BERT"):
        find_units(encoder)
    with pytest.raises(TargetError, match=r"in_proj_weight"):
        find_units(nn.Sequential(nn.MultiheadAttention(8, 2)))
    with pytest.raises(TargetError, match=r"Conv2d.*Supported blocks: BERT"):
        find_units(nn.Sequential(nn.Conv2d(1, 1, 1)))
    with pytest.raises(GossamerError, match="Module"):
        find_units("bert")


def test_layers_that_are_not_plain_are_refused():
    model = make_model("zoo")
    nn.utils.parametrizations.weight_norm(model.layers[1].up)
    with pytest.raises(TargetError, match=r"layers\.1\.up.*computed"):
        find_units(model)
    model = make_model("zoo")
    model.layers[2].down.weight = model.layers[0].down.weight
    with pytest.raises(TargetError, match="one tensor"):
        find_units(model)
    model = make_model("zoo")
    model.layers[2] = model.layers[0]
    with pytest.raises(TargetError, match="same block"):
        find_units(model)
    model = make_model("zoo")
    gossamer.sparsify(model, sparsity=0.5)
    with pytest.raises(TargetError, match="MaskedLinear"):
        find_units(model)


def test_onnx_export_refuses_sparse_layers_and_unknown_inputs(tmp_path):
    model = make_model("zoo")
    with pytest.raises(InputError, match="not among the inputs"):
        export_onnx(model, {"ids_BT": make_ids()}, tmp_path / "m.onnx", dynamic=["ids"])
    gossamer.sparsify(model, sparsity=0.5)
    with pytest.raises(InputError, match="to_dense"):
        export_onnx(model, {"ids_BT": make_ids()}, tmp_path / "m.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2", "zoo"])
def test_slim_models_export_to_onnx(name, tmp_path):
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    model, ids = make_model(name), make_ids()
    slim(model, UNEVEN)
    key = "ids_BT" if name == "zoo" else "input_ids"
    path = export_onnx(model, {key: ids}, tmp_path / "m.onnx")
    found = ReferenceEvaluator(str(path)).run(None, {key: ids.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), run(model, ids), rtol=0, atol=1e-4)
