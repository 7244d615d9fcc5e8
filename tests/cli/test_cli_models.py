# SPDX-License-Identifier: Apache-2.0
"""prune, explain and convert on real models: what is written, shown and refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import gossamer
from gossamer.cli.bare_checkpoint import is_bare, read_bare
from gossamer.cli.models import load_source
from gossamer.nn.batch import call_on_batch
from gossamer.nn.layers import MaskedConv2d, MaskedLinear
from gossamer.runs import example_input
from gossamer.zoo import MLP


@pytest.fixture
def pruned(tmp_path):
    torch.manual_seed(0)
    model = MLP((16, 64, 64, 4))
    gossamer.sparsify(model, sparsity=0.75)
    return model, gossamer.save(model, tmp_path / "pruned")


def tiny_bert(folder):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    model.save_pretrained(folder)
    return model


def test_an_onnx_file_is_a_model(gossamer_cli, tmp_path):
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(0)
    weight, table = torch.randn(32, 48), torch.randn(20, 32)
    weight[weight.abs() < 0.7] = 0
    tensors = {"fc.weight": weight, "table": table}
    nodes = [
        onnx.helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        onnx.helper.make_node("MatMul", ["x", "fc.weight"], ["y"]),
    ]
    ids = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["b", "t"])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    stored = [onnx.numpy_helper.from_array(t.numpy(), name) for name, t in tensors.items()]
    graph = onnx.helper.make_graph(nodes, "g", [ids], [result], stored)
    opset = onnx.helper.make_opsetid("", 13)
    path = tmp_path / "model.onnx"
    model = onnx.helper.make_model(graph, opset_imports=[opset])
    path.write_bytes(model.SerializeToString())
    (tmp_path / "tokenizer.json").write_text("{}")
    example = example_input(load_source(str(path)).model, 300)
    assert example.kwargs["input_ids"].shape == (2, 128)
    assert int(example.kwargs["input_ids"].max()) < 20
    assert gossamer_cli("convert", path, tmp_path / "packed", "--json").code == 0
    assert (tmp_path / "packed" / "tokenizer.json").is_file()
    again = gossamer.load(tmp_path / "packed")
    assert isinstance(again.fc, MaskedLinear)
    ids = torch.tensor([[3, 4]])
    assert torch.allclose(again(ids), table[ids] @ weight, atol=1e-5)
    ran = gossamer_cli("prune", path, "-o", tmp_path / "out", "--sparsity", "0.9", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["ms_sparse"] > 0
    ran = gossamer_cli("explain", path, "--tokens", "64", "--json")
    assert ran.code == 0, ran.err
    assert [row["name"] for row in ran.document["layers"]] == ["fc"]
    path.write_bytes(b"nothing")
    ran = gossamer_cli("explain", path)
    assert ran.code == 3
    assert "is no ONNX file" in ran.err


def test_prune_writes_artifact_report_and_card(gossamer_cli, tmp_path):
    out = tmp_path / "out"
    ran = gossamer_cli("prune", "zoo:mlp", "-o", out, "--sparsity", "0.9", "--json")
    assert ran.code == 0, ran.err
    document = ran.document
    assert document["sparsity"] == pytest.approx(0.9, abs=1e-4)
    assert document["quality_sparse"] is None
    assert document["ms_dense"] > 0
    assert document["ms_sparse"] > 0
    assert document["bytes_sparse"] < document["bytes_dense"] / 5
    assert document["machine"]["torch"] == torch.__version__
    model = gossamer.load(out)
    assert all(isinstance(layer, MaskedLinear) for layer in model.layers)
    report = json.loads((out / "report.json").read_text())
    (stage,) = report["recipe"]["stages"]
    assert stage["prune"] == {
        "method": "magnitude",
        "kind": "built-in",
        "pattern": "unstructured",
        "sparsity": 0.9,
        "budget": "uniform",
        "refit": False,
    }
    assert [layer["name"] for layer in report["layers"]] == ["layers.0", "layers.1"]
    card = (out / "card.md").read_text()
    assert card.startswith("# out\n")
    assert "not measured" in card
    assert "zoo:mlp" in card


def test_prune_shows_dense_beside_pruned(gossamer_cli, tmp_path):
    ran = gossamer_cli("prune", "zoo:tiny-encoder", "-o", tmp_path / "o", "--sparsity", "0.8")
    assert ran.code == 0, ran.err
    for text in ("layers.0.query", "dense", "pruned", "ratio", "quality", "not measured"):
        assert text in ran.out
    assert "bytes on disk (packed)" in ran.out
    assert "ms per forward (1 x 128 random token ids)" in ran.out


def test_prune_dense_format_gives_ordinary_zeros(gossamer_cli, tmp_path):
    out = tmp_path / "o"
    ran = gossamer_cli("prune", "zoo:mlp", "-o", out, "--pattern", "2:4", "--format", "dense")
    assert ran.code == 0, ran.err
    weight = load_file(out / "model.safetensors")["layers.0.weight"]
    assert (weight.reshape(-1, 4) != 0).sum(1).eq(2).all()


def test_prune_respects_target_and_ignore(gossamer_cli, tmp_path):
    ran = gossamer_cli(
        *("prune", "zoo:tiny-encoder", "-o", tmp_path / "o", "--sparsity", "0.5", "--json"),
        *("--target", "layers.0.*", "--target", "layers.1.up", "--ignore", "*.query"),
    )
    names = [layer["name"] for layer in ran.document["layers"]]
    assert names == [
        *("layers.0.key", "layers.0.value", "layers.0.output", "layers.0.up", "layers.0.down"),
        "layers.1.up",
    ]


def test_prune_replaces_its_own_artifact_but_nothing_else(gossamer_cli, tmp_path):
    out = tmp_path / "o"
    arguments = ("prune", "zoo:mlp", "-o", out, "--sparsity", "0.5", "-q")
    assert gossamer_cli(*arguments).code == 0
    assert gossamer_cli(*arguments).code == 0
    (out / "thesis.tex").write_text("years of work")
    ran = gossamer_cli(*arguments)
    assert ran.code == 3
    assert "thesis.tex" in ran.err
    assert (out / "thesis.tex").read_text() == "years of work"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "a").write_text("b")
    ran = gossamer_cli("prune", "zoo:mlp", "-o", foreign, "--sparsity", "0.5", "--json")
    assert ran.code == 3
    assert "loading" not in ran.err
    assert (foreign / "a").read_text() == "b"


def test_prune_of_a_hugging_face_directory(gossamer_cli, tmp_path):
    tiny_bert(tmp_path / "bert")
    out = tmp_path / "out"
    ran = gossamer_cli(
        *("prune", tmp_path / "bert", "-o", out, "--sparsity", "0.5", "--tokens", "100", "--json"),
        *("--target", "encoder.layer.*"),
    )
    assert ran.code == 0, ran.err
    assert ran.document["timed_with"] == "2 x 38 random token ids"
    assert len(ran.document["layers"]) == 12
    assert type(gossamer.load(out)).__name__ == "BertModel"
    ran = gossamer_cli("explain", out, "--tokens", "8", "--json")
    assert {row["tokens"] for row in ran.document["layers"]} == {8, None}


def test_explain_names_kernels_and_reasons(gossamer_cli, pruned):
    ran = gossamer_cli("explain", pruned[1], "--tokens", "1", "--tokens", "64", "--json")
    rows = ran.document["layers"]
    assert [(row["name"], row["tokens"]) for row in rows] == [
        *(("layers.0", 1), ("layers.0", 64), ("layers.1", 1), ("layers.1", 64), ("head", None)),
    ]
    assert rows[1]["kernel"] == "panel"
    assert all(row["why"] for row in rows)


def test_explain_says_when_no_gain_is_to_be_expected(gossamer_cli, tmp_path):
    dense = gossamer.save(MLP((8, 8, 8, 4)), tmp_path / "dense")
    ran = gossamer_cli("explain", dense)
    assert "no speed-up is to be expected" in ran.out


def test_convert_there_and_back_keeps_every_bit(gossamer_cli, pruned, tmp_path):
    model, packed = pruned
    dense, again = tmp_path / "dense", tmp_path / "again"
    assert gossamer_cli("convert", packed, dense, "--format", "dense").code == 0
    tensors = load_file(dense / "model.safetensors")
    assert set(tensors) == set(MLP((16, 64, 64, 4)).state_dict())
    ran = gossamer_cli("convert", dense, again, "--json")
    assert set(ran.document["sparse_layers"]) == {"layers.0", "layers.1"}
    assert ran.document["output"]["tensor_bytes"] < ran.document["input"]["tensor_bytes"] / 2
    loaded = gossamer.load(again)
    for name, layer in model.named_modules():
        if isinstance(layer, MaskedLinear):
            other = loaded.get_submodule(name)
            assert torch.equal(other.mask(), layer.mask())
            assert torch.equal(other.to_dense().weight, layer.to_dense().weight)


def test_convert_takes_the_zeros_of_another_pruner(gossamer_cli, tmp_path):
    model = tiny_bert(tmp_path / "bert")
    weight = model.encoder.layer[0].intermediate.dense.weight
    with torch.no_grad():
        weight.mul_(torch.tensor([1.0, 0.0, 0.0, 1.0]).repeat(4))
    model.save_pretrained(tmp_path / "bert")
    ran = gossamer_cli("convert", tmp_path / "bert", tmp_path / "out", "--json")
    assert ran.document["sparse_layers"] == {
        "encoder.layer.0.intermediate.dense": {"pattern": "2:4", "sparsity": 0.5}
    }


@pytest.fixture
def bare_tensors():
    generator = torch.Generator().manual_seed(0)

    def weight(*shape):
        made = torch.randn(shape, generator=generator)
        return made * (torch.rand(shape, generator=generator) > 0.6)

    return {
        "body.0.weight": weight(12, 20),
        "body.0.bias": torch.randn(12, generator=generator),
        "body.1.weight": weight(6, 3, 3, 3),
        "embed_tokens.weight": weight(30, 20),
        "norm.weight": torch.ones(20),
        "lora.weight": weight(4, 4),
        "lora.scale": torch.ones(1),
        "steps": torch.tensor(7),
        "scale": torch.tensor([2.0]),
    }


def test_convert_packs_a_bare_checkpoint_for_the_users_own_model(
    gossamer_cli, tmp_path, bare_tensors
):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(20, 12), nn.Conv2d(3, 6, 3, bias=False))
            self.embed_tokens = nn.Embedding(30, 20)
            self.norm = nn.RMSNorm(20)
            self.lora = nn.Module()
            self.lora.weight = nn.Parameter(torch.empty(4, 4))
            self.lora.scale = nn.Parameter(torch.empty(1))
            self.register_buffer("steps", torch.tensor(0))
            self.scale = nn.Parameter(torch.empty(1))

    source = tmp_path / "weights.safetensors"
    save_file(bare_tensors, source)
    ran = gossamer_cli("convert", source, tmp_path / "out", "--json")
    assert ran.code == 0, ran.err
    assert set(ran.document["sparse_layers"]) == {"body.0", "body.1"}
    assert "model=your_model" in ran.err
    own = gossamer.load(tmp_path / "out", model=Own())
    assert torch.equal(own.body[0].to_dense().weight, bare_tensors["body.0.weight"])
    assert torch.equal(own.body[1].to_dense().weight, bare_tensors["body.1.weight"])
    assert torch.equal(own.embed_tokens.weight, bare_tensors["embed_tokens.weight"])
    assert int(own.steps) == 7


def test_bare_checkpoints_are_told_from_models(tmp_path, pruned, bare_tensors):
    save_file(bare_tensors, tmp_path / "x.safetensors")
    assert is_bare(tmp_path / "x.safetensors")
    assert not is_bare(pruned[1])
    assert not is_bare(tmp_path / "nowhere")
    model = read_bare(tmp_path / "x.safetensors")
    assert isinstance(model.get_submodule("body.0"), MaskedLinear)
    assert isinstance(model.get_submodule("body.1"), MaskedConv2d)


def test_convert_says_when_nothing_is_sparse(gossamer_cli, tmp_path):
    source = gossamer.save(MLP((8, 8, 4)), tmp_path / "in")
    ran = gossamer_cli("convert", source, tmp_path / "out")
    assert "no sparse layers" in ran.out
    assert "nothing became smaller" in ran.err


@pytest.mark.parametrize("source", ["zoo:mlp", "zoo:tiny-encoder"])
def test_zoo_sources_are_the_same_every_time_and_can_be_run(source):
    state = torch.random.get_rng_state()
    first, second = (load_source(source).model for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    example = example_input(first, 200)
    assert torch.equal(call_on_batch(first, example.batch), call_on_batch(second, example.batch))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (nn.Sequential(nn.Sequential(nn.Linear(5, 3)), nn.ReLU()), "7 x 5 random numbers"),
        (nn.Sequential(nn.Conv2d(3, 3, 1)), None),
        (nn.Sequential(), None),
        (nn.LSTM(3, 3), None),
    ],
)
def test_example_inputs_are_made_up_only_where_they_fit(model, text):
    example = example_input(model, 7)
    assert text is None if example is None else example.text == text
    if example is not None:
        assert call_on_batch(model, example.batch).shape[0] == 7


def test_explain_of_a_model_without_layers(gossamer_cli, tmp_path):
    empty = gossamer.save(nn.Sequential(nn.ReLU()), tmp_path / "empty")
    ran = gossamer_cli("explain", empty)
    assert ran.code == 0, ran.err
    assert "nothing to speed up" in ran.out


@pytest.mark.parametrize(("sparsity", "warned"), [("0.2", True), ("0.9", False)])
def test_prune_says_before_the_work_when_no_gain_is_to_be_expected(
    sparsity, warned, gossamer_cli, tmp_path
):
    ran = gossamer_cli("prune", "zoo:mlp", "-o", tmp_path / "o", "--sparsity", sparsity)
    assert ran.err.splitlines()[0].endswith("no speed-up.") is warned
