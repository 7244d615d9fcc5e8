# SPDX-License-Identifier: Apache-2.0
"""Tables in artifacts: codes stay codes, shadows stay shadows, and damaged arrays are refused."""

import json

import pytest
import torch
from artifact_tools import contents
from torch import nn

import gossamer
from gossamer.errors import ArtifactError, InputError
from gossamer.io.artifact import open_artifact
from gossamer.io.torch_bags import export_bag_4bit
from gossamer.nn import Embedding, EmbeddingBag, quantize_tables
from gossamer.nn.layers.tables import fold_rows

HOW = (
    {"bits": 4},
    {"bits": 2, "half_scale": True},
    {"bits": 8, "granularity": "row", "period": 7},
    {"bits": None},
    {"bits": 8, "granularity": "row", "shadow": False},
    {"bits": 4, "granularity": "row", "shadow": False},
)
IDS = torch.randint(0, 30, (6, 4), generator=torch.Generator().manual_seed(0))


def model_of(**how):
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(30, 7, mode="mean", padding_idx=2), nn.Linear(7, 3))
    quantize_tables(model, **how)
    model.train()
    model(IDS).sum().backward()
    model.zero_grad()
    return model.eval()


def same(one, other):
    state, again = one.state_dict(), other.state_dict()
    assert list(state) == list(again)
    assert all(torch.equal(state[name], again[name]) for name in state)


@pytest.mark.parametrize("folds", [False, True])
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_tables_come_back(tmp_path, how, packs, folds):
    model = model_of(**how)
    if folds:
        if not how.get("shadow", True):
            pytest.skip("codes that are trained keep their rows")
        model[0] = fold_rows(model[0], torch.arange(30) % 4)
    if packs:
        model = gossamer.compile(model)
    gossamer.save(model, tmp_path / "a")
    again = gossamer.load(tmp_path / "a")
    assert type(again[0]) is type(model[0])
    assert str(again[0]) == str(model[0])
    same(model, again)
    assert torch.equal(again(IDS), model(IDS))
    gossamer.save(again, tmp_path / "b" / "a")
    assert contents(tmp_path / "a") == contents(tmp_path / "b" / "a")


def test_a_packed_file_holds_codes_and_one_scale(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(4000, 16, mode="sum"))
    quantize_tables(model)
    gossamer.save(gossamer.compile(model), tmp_path / "a")
    with open_artifact(tmp_path / "a") as artifact:
        entry = artifact.manifest.tensors["0.weight"]
    assert (entry.kind, entry.form, entry.bits, entry.shape) == ("table", "packed", 4, (4000, 16))
    size = sum(path.stat().st_size for path in (tmp_path / "a").glob("*.safetensors"))
    assert 4000 * 8 + 4 <= size <= 4000 * 8 + 1024


def test_a_dense_file_is_read_by_anything(tmp_path):
    from safetensors.torch import load_file

    model = model_of(bits=4)
    gossamer.save(model, tmp_path / "a", format="dense")
    (file,) = (tmp_path / "a").glob("*.safetensors")
    tensors = load_file(file)
    assert sorted(tensors) == ["0.weight", "1.bias", "1.weight"]
    assert torch.equal(tensors["0.weight"], model[0].dense_weight())
    assert type(gossamer.load(tmp_path / "a")[0]) is nn.EmbeddingBag


def test_a_models_own_tables_are_filled_in_place(tmp_path):
    model = model_of(bits=4)
    gossamer.save(model, tmp_path / "a")
    other = nn.Sequential(nn.EmbeddingBag(30, 7, mode="mean", padding_idx=2), nn.Linear(7, 3))
    quantize_tables(other, bits=4)
    weight = other[0].weight
    gossamer.load(tmp_path / "a", model=other)
    assert other[0].weight is weight
    same(model, other)
    stock = nn.Sequential(nn.EmbeddingBag(30, 7, mode="mean", padding_idx=2), nn.Linear(7, 3))
    gossamer.load(tmp_path / "a", model=stock)
    assert type(stock[0]) is EmbeddingBag
    same(model, stock)


def test_a_table_does_not_fit_another_layer(tmp_path):
    model = nn.Sequential(nn.Embedding(7, 7))
    quantize_tables(model)
    gossamer.save(model, tmp_path / "a")
    with pytest.raises(ArtifactError, match="is a table, but the model has a Linear there"):
        gossamer.load(tmp_path / "a", model=nn.Sequential(nn.Linear(7, 7, bias=False)))


def test_a_tied_table_is_stored_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 30, bias=False)
            self.emb = nn.Embedding(30, 8)
            self.head.weight = self.emb.weight

    model = Tied()
    quantize_tables(model)
    gossamer.save(model, tmp_path / "a")
    with open_artifact(tmp_path / "a") as artifact:
        tensors = artifact.manifest.tensors
    assert tensors["emb.weight"].kind == "table"
    assert tensors["head.weight"].to == "emb.weight"
    other = Tied()
    quantize_tables(other)
    gossamer.load(tmp_path / "a", model=other)
    assert other.head.weight is other.emb.weight
    assert torch.equal(other.emb.weight, model.emb.weight)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bits": 8}, "rows must be"),
        ({"rows": 29}, "the manifest says 29"),
        ({"shape": [31, 7]}, "30 rows for 31 ids"),
        ({"form": "trained"}, "arrays"),
        ({"granularity": "row"}, "scales must be"),
        ({"shadow": False}, "without a shadow"),
        ({"bits": 3}, "fault"),
    ],
)
def test_a_manifest_that_lies_about_a_table_is_refused(tmp_path, changes, text):
    from gossamer.io.safe_files.manifests import digest_of

    gossamer.save(gossamer.compile(model_of(bits=4)), tmp_path / "a")
    path = tmp_path / "a" / "manifest.json"
    content = json.loads(path.read_text())
    content["tensors"]["0.weight"] |= changes
    content.pop("digest")
    path.write_text(json.dumps({**content, "digest": digest_of(content)}))
    with pytest.raises(ArtifactError, match=text):
        gossamer.load(tmp_path / "a")


def _saved_with(folder, **edits):
    model = gossamer.compile(model_of(bits=4, granularity="row"))
    for name, edit in edits.items():
        edit(model[0]._buffers[name])
    gossamer.save(model, folder)


@pytest.mark.parametrize(
    ("edits", "text"),
    [
        ({"scales": lambda t: t.fill_(0)}, "positive and finite"),
        ({"scales": lambda t: t[3].fill_(float("nan"))}, "positive and finite"),
        ({"codes": lambda t: t[:, -1].fill_(0xFF)}, "behind the last code"),
    ],
)
def test_numbers_that_no_lookup_may_see_are_refused(tmp_path, edits, text):
    _saved_with(tmp_path / "a", **edits)
    with pytest.raises(ArtifactError, match=text):
        gossamer.load(tmp_path / "a")


@pytest.mark.parametrize("granularity", ["table", "row"])
@pytest.mark.parametrize("spread", [1e-6, 1.0, 300.0])
def test_the_export_to_torchs_4_bit_bags_is_exact(granularity, spread):
    weight = torch.randn(50, 18, generator=torch.Generator().manual_seed(1)) * spread
    stock = nn.EmbeddingBag(50, 18, mode="sum", _weight=weight)
    table = EmbeddingBag.from_dense(stock, granularity=granularity, half_scale=True).eval()
    packed = export_bag_4bit(table)
    assert packed.shape == (50, 9 + 4)
    ids, offsets = torch.arange(50).flip(0), torch.tensor([0, 1, 1, 9, 30])
    bag = torch.ops.quantized.embedding_bag_4bit_rowwise_offsets
    assert torch.equal(bag(packed, ids, offsets), table(ids, offsets).detach())
    folded = fold_rows(table, torch.arange(50) % 3)
    again = bag(export_bag_4bit(folded), ids, offsets)
    assert torch.equal(again, folded(ids, offsets).detach())


def test_what_torch_cannot_hold_is_refused():
    with pytest.raises(InputError, match="half_scale=True"):
        export_bag_4bit(Embedding.from_dense(nn.Embedding(5, 4), bits=4))
    with pytest.raises(InputError, match="whole bytes"):
        export_bag_4bit(Embedding.from_dense(nn.Embedding(5, 3), bits=4, half_scale=True))
    with pytest.raises(InputError, match="table of 4 bits"):
        export_bag_4bit(nn.Embedding(5, 4))
