# SPDX-License-Identifier: Apache-2.0
"""ONNX files as modules: the same outputs, real layers under readable names, zeros kept."""

import copy
import shutil
import sys

import numpy as np
import pytest
import torch
from artifact_tools import edit_manifest
from torch import nn

import gossamer
from gossamer.errors import ArtifactError, InputError
from gossamer.io import load, load_onnx, save
from gossamer.nn.layers import MaskedConv2d, MaskedLinear
from gossamer.nn.operator_graph import GraphModule

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402
from onnx_tools import Maker, bert_file, gelu, run_reference  # noqa: E402


def tiny_bert():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        vocab_size=50, max_position_embeddings=20,
    )  # fmt: skip
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def some_tokens():
    ids = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def operators(model):
    return {step.operator for step in model.plan.steps}


@pytest.mark.parametrize("opset", [11, 13, 17, 18])
def test_an_encoder_is_recognised_and_computes_the_same(tmp_path, opset):
    stock = tiny_bert()
    model = load_onnx(bert_file(stock, tmp_path / "m.onnx", opset))
    inputs = some_tokens()
    with torch.no_grad():
        expected, found = stock(**inputs).last_hidden_state, model(**inputs)
    live = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[live], expected[live], rtol=1e-5, atol=1e-5)
    names = {
        name: type(m) for name, m in model.named_modules() if name and type(m) is not nn.Module
    }
    for name, kind in names.items():
        assert kind is nn.GELU or type(stock.get_submodule(name)) is kind, name
    stock_layers = [n for n, m in stock.named_modules() if isinstance(m, nn.Linear | nn.LayerNorm)]
    assert set(stock_layers) <= set(names)
    assert sum(kind is nn.GELU for kind in names.values()) == 2
    spelt_out = {"Erf", "Sqrt", "ReduceMean", "Pow", "Softmax", "FlatSoftmax", "MatMul"}
    assert not operators(model) & spelt_out
    state = stock.state_dict()
    for name in stock_layers:
        assert torch.equal(model.get_submodule(name).weight, state[f"{name}.weight"])


def test_an_imported_encoder_is_pruned_saved_loaded_and_compiled(tmp_path):
    model = load(bert_file(tiny_bert(), tmp_path / "m.onnx"))
    inputs = some_tokens()
    gossamer.sparsify(model, sparsity=0.5)
    assert isinstance(model.encoder.layer._modules["0"].output.dense, MaskedLinear)
    with torch.no_grad():
        expected = model(**inputs)
    save(model, tmp_path / "packed")
    again = load(tmp_path / "packed")
    assert type(again) is GraphModule
    assert again.plan == model.plan
    with torch.no_grad():
        assert torch.equal(again(**inputs), expected)
        gossamer.compact(again)
        fast = gossamer.compile(again, tokens=18, kernel="panel")
        torch.testing.assert_close(fast(**inputs), expected, rtol=1e-5, atol=1e-5)
    kernels = {row.kernel for row in gossamer.explain(fast)}
    assert kernels == {"panel"}
    assert copy.deepcopy(again).plan == again.plan


def test_a_manifest_cannot_ask_for_another_operator(tmp_path):
    model = load_onnx(bert_file(tiny_bert(), tmp_path / "m.onnx"))
    save(model, tmp_path / "a")

    def change(**fields):
        return lambda m: m["architecture"]["steps"][3].update(fields)

    for edit, text in (
        (change(operator="eval"), "there is no operator 'eval'"),
        (change(layer="os"), "there is no layer 'os'"),
        (change(inputs=[10**6, 0]), "before it is made"),
        (change(attributes={"__class__": 1}), "is not computed"),
        (lambda m: m["architecture"]["constants"][0].update(shape=[2, 2]), "shape"),
        (lambda m: m["architecture"]["constants"][0].update(dtype="object"), "unknown type"),
        (lambda m: m["architecture"]["layers"][0].update(key="a.__init__"), "no layer"),
        (lambda m: m["architecture"]["layers"][0]["args"].update(eps="x"), "must be"),
        (lambda m: m["architecture"]["outputs"].clear(), "no outputs"),
    ):
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        edit_manifest(tmp_path / "b", edit)
        with pytest.raises(ArtifactError, match=text):
            load(tmp_path / "b")


def test_calibrated_pruning_flows_through_a_graph(tmp_path):
    model = load_onnx(bert_file(tiny_bert(), tmp_path / "m.onnx"))
    gossamer.sparsify(model, sparsity=0.5, scorer="wanda", data=[some_tokens()])
    sparse = [m for m in model.modules() if isinstance(m, MaskedLinear)]
    assert len(sparse) == 12
    assert all(abs(m.density - 0.5) < 0.1 for m in sparse)


class Residual(nn.Module):
    """A block of a ResNet with a stride and a projection."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm0 = nn.BatchNorm2d(8)
        self.conv1 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, groups=2)
        self.norm2 = nn.BatchNorm2d(16)
        self.side = nn.Conv2d(8, 16, 1, stride=2)
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.norm0(self.stem(x))), 3, 2, 1)
        y = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(y)) + self.side(x))
        return self.fc(x.mean((2, 3)))


def trained(model):
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 2)
            module.bias.data.normal_()
    return model.eval()


def resnet_file(model, path):
    make = Maker(13)
    state = model.state_dict()

    def conv(x, name, **attributes):
        has_bias = f"{name}.bias" in state
        bias = [make.const(state[f"{name}.bias"], f"{name}.bias")] if has_bias else []
        weight = make.const(state[f"{name}.weight"], f"{name}.weight")
        return make.op("Conv", x, weight, *bias, **attributes)

    def norm(x, name):
        parts = ("weight", "bias", "running_mean", "running_var")
        return make.op("BatchNormalization", x, *(
            make.const(state[f"{name}.{part}"], f"{name}.{part}") for part in parts))  # fmt: skip

    around, x = [1, 1, 1, 1], make.input("image", ["batch", 3, "h", "w"])
    x = make.op("Relu", norm(conv(x, "stem", pads=around), "norm0"))
    x = make.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=around)
    y = make.op("Relu", norm(conv(x, "conv1", pads=around, strides=[2, 2]), "norm1"))
    y = norm(conv(y, "conv2", pads=around, group=2), "norm2")
    x = make.op("Relu", make.op("Add", y, conv(x, "side", strides=[2, 2])))
    x = make.op("Flatten", make.op("GlobalAveragePool", x))
    weight, bias = (make.const(state[f"fc.{part}"], f"fc.{part}") for part in ("weight", "bias"))
    make.result(make.op("Gemm", x, weight, bias, transB=1), "logits")
    return make.write(path)


def test_a_residual_network_with_batch_norms(tmp_path):
    stock = trained(Residual())
    with torch.no_grad():
        stock.conv1.weight[stock.conv1.weight.abs() < 0.08] = 0
    model = load_onnx(resnet_file(stock, tmp_path / "m.onnx"))
    x = torch.randn(2, 3, 17, 18)
    with torch.no_grad():
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4)
    layers = {name: type(m) for name, m in model.named_children() if name != "constants"}
    convs = dict.fromkeys(("stem", "conv1", "conv2", "side"), nn.Conv2d)
    assert layers == convs | {"fc": nn.Linear}
    assert "BatchNormalization" not in operators(model)
    # Zeros of the file stay zeros under the folded norm.
    assert torch.equal(model.conv1.weight == 0, stock.conv1.weight == 0)
    pruned = load(tmp_path / "m.onnx", detect_masks=True)
    assert isinstance(pruned.conv1, MaskedConv2d)
    with torch.no_grad():
        torch.testing.assert_close(pruned(x), stock(x), rtol=1e-4, atol=1e-4)
        fast = gossamer.compile(pruned, example=x, kernel="panel")
        torch.testing.assert_close(fast(x), stock(x), rtol=1e-4, atol=1e-4)
    save(pruned, tmp_path / "a")
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "a")(x), pruned(x))


@pytest.mark.parametrize("order", range(4))
def test_gelu_in_any_order(tmp_path, order):
    make = Maker()
    x = make.input("x", [None, 4])
    if order == 0:
        y = gelu(make, x)
    else:
        scaled = make.op("Mul", make.const(0.5**0.5, kind="float32"), x)
        one = make.op("Add", make.const(1.0, kind="float32"), make.op("Erf", scaled))
        half = make.const(0.5, kind="float32")
        if order == 1:
            y = make.op("Mul", make.op("Mul", x, half), one)
        elif order == 2:
            y = make.op("Mul", make.op("Mul", half, one), x)
        else:
            y = make.op("Mul", half, make.op("Mul", one, x))
    make.result(y, "y")
    model = load_onnx(make.write(tmp_path / "m.onnx"))
    assert operators(model) == {"GELU"}
    x = torch.randn(3, 4)
    torch.testing.assert_close(model(x), nn.functional.gelu(x))


def test_what_only_looks_like_gelu_or_layer_norm_is_computed_as_it_is(tmp_path):
    make = Maker()
    x = make.input("x", [None, 4])
    scaled = make.op("Div", x, make.const(2**0.5, kind="float32"))
    one = make.op("Add", make.op("Erf", scaled), make.const(1.0, kind="float32"))
    third = make.op("Mul", make.op("Mul", x, one), make.const(0.3, kind="float32"))
    centred = make.op("Sub", third, make.op("ReduceMean", third, axes=[-1]))
    spread = make.op(
        "ReduceMean", make.op("Pow", centred, make.const(3.0, kind="float32")), axes=[-1]
    )
    root = make.op("Sqrt", make.op("Add", spread, make.const(5.0, kind="float32")))
    normed = make.op("Mul", make.op("Div", centred, root), make.const(np.ones(4), kind="float32"))
    make.result(make.op("Add", normed, make.const(np.ones(4), kind="float32")), "y")
    path = make.write(tmp_path / "m.onnx")
    model, x = load_onnx(path), torch.randn(3, 4)
    assert "GELU" not in operators(model)
    assert "LayerNorm" not in operators(model)
    (expected,) = run_reference(path, {"x": x.numpy()})
    torch.testing.assert_close(model(x), torch.from_numpy(expected), rtol=1e-5, atol=1e-6)


def test_sparse_initialisers_keep_their_zeros(tmp_path):
    make = Maker()
    dense = np.zeros((6, 4), dtype=np.float32)
    places = np.array([1, 5, 8, 22], dtype=np.int64)
    dense.reshape(-1)[places] = [1.0, -2.0, 3.0, 0.5]
    for name, indices in (("flat", places), ("pairs", np.stack(np.divmod(places, 4), axis=1))):
        values = numpy_helper.from_array(dense.reshape(-1)[places], f"{name}.weight")
        where = numpy_helper.from_array(indices, f"{name}.indices")
        make.sparse.append(helper.make_sparse_tensor(values, where, [6, 4]))
    x = make.input("x", ["n", 6])
    make.result(make.op("MatMul", x, "flat.weight"), "y")
    make.result(make.op("MatMul", x, "pairs.weight"), "z")
    model = load_onnx(make.write(tmp_path / "m.onnx"))
    x = torch.randn(3, 6)
    for found, layer in zip(model(x), (model.flat, model.pairs), strict=True):
        assert torch.equal(layer.weight, torch.from_numpy(dense.T.copy()))
        torch.testing.assert_close(found, x @ torch.from_numpy(dense))
    adopted = gossamer.io.adopt_zeros(model)
    assert [layer.name for layer in adopted] == ["flat", "pairs"]


def test_linear_layers_of_matmul_and_gemm(tmp_path):
    make = Maker()
    x = make.input("x", ["n", 4])
    torch.manual_seed(0)
    weight, bias = torch.randn(4, 3), torch.randn(3)
    shared = make.const(weight, "w")
    scaled = make.op(
        "Gemm", x, shared, make.const(bias, "bias"), alpha=0.5, beta=2.0, name="scaled"
    )
    plain = make.op("MatMul", x, shared, name="/part/plain/MatMul")
    wide = make.op("Add", plain, make.const(torch.randn(2, 1, 3), "wide"))
    left = make.op("MatMul", make.const(torch.randn(5, 3), "left"), make.op("Transpose", scaled))
    for name, value in (("a", scaled), ("b", wide), ("c", left)):
        make.result(value, name)
    path = make.write(tmp_path / "m.onnx")
    model, x = load_onnx(path), torch.randn(2, 4)
    assert torch.equal(model.scaled.weight, 0.5 * weight.T)
    assert torch.equal(model.scaled.bias, 2 * bias)
    assert model.part.plain.bias is None
    # A product from the left and a bias with more dimensions are no Linear.
    assert sum(isinstance(m, nn.Linear) for m in model.modules()) == 2
    found = model(x)
    assert found.names == ("a", "b", "c")
    assert found.b is found[1]
    for one, other in zip(found, run_reference(path, {"x": x.numpy()}), strict=True):
        torch.testing.assert_close(one, torch.from_numpy(other), rtol=1e-5, atol=1e-6)


def test_one_weight_under_two_products_stays_one(tmp_path):
    make = Maker()
    x = make.input("x", ["n", 4])
    shared = make.const(torch.randn(4, 4), "w.weight")
    once = make.op("MatMul", x, shared, name="/first/MatMul")
    make.result(make.op("MatMul", once, shared, name="/second/MatMul"), "y")
    model = load_onnx(make.write(tmp_path / "m.onnx"))
    assert model.first.weight is model.second.weight
    gossamer.sparsify(model, sparsity=0.5)
    x = torch.randn(2, 4)
    expected = model(x)
    save(model, tmp_path / "a")
    assert torch.equal(load(tmp_path / "a")(x), expected)


@pytest.mark.parametrize(
    "attributes",
    [
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [1, 3]},
        {"auto_pad": "VALID"},
        {"pads": [0, 1, 2, 0]},
        {"pads": [1, 2, 1, 2], "strides": [2, 1], "dilations": [1, 2]},
        {"group": 2, "kernel_shape": [3, 2]},
    ],
)
def test_convolutions_pad_as_onnx_does(tmp_path, attributes):
    make = Maker()
    x = make.input("x", [1, 4, 9, 8])
    weight = torch.randn(6, 4 // attributes.get("group", 1), 3, 2)
    make.result(make.op("Conv", x, make.const(weight, "conv.weight"), **attributes), "y")
    path = make.write(tmp_path / "m.onnx")
    model, x = load_onnx(path), torch.randn(1, 4, 9, 8)
    assert isinstance(model.conv, nn.Conv2d)
    expected = torch.from_numpy(run_reference(path, {"x": x.numpy()})[0])
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)


def test_external_data_beside_the_file(tmp_path):
    make = Maker()
    weight = torch.randn(64, 64)
    make.result(make.op("MatMul", make.input("x", [1, 64]), make.const(weight, "l.weight")), "y")
    proto = make.model()
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin")
    assert (tmp_path / "weights.bin").stat().st_size >= 64 * 64 * 4
    assert torch.equal(load_onnx(tmp_path / "m.onnx").l.weight, weight.T)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ArtifactError, match=r"'weights\.bin' is missing"):
        load_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_other_floats_stay_what_they_are(tmp_path, kind):
    make = Maker()
    x = make.input("x", [2, 4], kind)
    make.result(make.op("MatMul", x, make.const(np.ones((4, 3)), "l.weight", kind)), "y", kind)
    model = load_onnx(make.write(tmp_path / "m.onnx"))
    assert model.l.weight.dtype is getattr(torch, kind)
    with pytest.raises(InputError, match=rf"input x: expected {kind}, got torch.float32"):
        model(torch.ones(2, 4))


def test_inputs_are_checked_by_name_type_and_shape(tmp_path):
    model = load_onnx(bert_file(tiny_bert(), tmp_path / "m.onnx"))
    inputs = some_tokens()
    with pytest.raises(
        InputError, match="expected the inputs input_ids, attention_mask, got input"
    ):
        model(inputs["input_ids"])
    with pytest.raises(InputError, match=r"input_ids: expected int64, got torch\.float32"):
        model(inputs["input_ids"].float(), inputs["attention_mask"])
    with pytest.raises(InputError, match=r"attention_mask: expected the shape \[any, any\]"):
        model(inputs["input_ids"], inputs["attention_mask"][0])
    with pytest.raises(InputError, match=r"cannot be computed on shapes"):
        model(inputs["input_ids"], inputs["attention_mask"][:, :4])
    with pytest.raises(InputError, match=r"Gather.*indices from"):
        model(inputs["input_ids"] + 100, inputs["attention_mask"])


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    path = bert_file(tiny_bert(), tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"gossamer\[onnx\]"):
        load_onnx(path)


def test_names_that_torch_cannot_take(tmp_path):
    make = Maker()
    x = make.input("x", [1, 4])
    names = ("forward.weight", "constants.weight", "a.weight", "a.b.weight", "a b/c:d.weight", "é")
    for name in names:
        x = make.op("MatMul", x, make.const(torch.eye(4), name), name=f"node {name}")
    make.result(x, "y")
    model = load_onnx(make.write(tmp_path / "m.onnx"))
    layers = [name for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    assert layers == ["forward_", "constants_", "a.layer", "a.b", "a_b_c_d", "node"]
    x = torch.randn(1, 4)
    assert torch.equal(model(x), x)


def test_a_half_named_output_of_dropout_is_refused(tmp_path):
    make = Maker(13)
    kept, mask = make.op("Dropout", make.input("x", [2]), outputs=2)
    make.result(kept, "y")
    assert torch.equal(load_onnx(make.write(tmp_path / "a.onnx"))(torch.ones(2)), torch.ones(2))
    make.result(mask, "z", "bool")
    with pytest.raises(ArtifactError, match="is an output that is not computed"):
        load_onnx(make.write(tmp_path / "b.onnx"))


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_what_torch_exports(tmp_path, dynamo):
    pytest.importorskip("onnxscript")
    bert, inputs = tiny_bert(), some_tokens()

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert

        def forward(self, input_ids, attention_mask):
            return self.bert(input_ids=input_ids, attention_mask=attention_mask)[0]

    pictures = torch.randn(2, 3, 17, 18)
    net = trained(Residual())
    for model, args in ((Plain().eval(), tuple(inputs.values())), (net, (pictures,))):
        path = tmp_path / f"{type(model).__name__}.onnx"
        more = {"external_data": False, "verbose": False} if dynamo else {"opset_version": 14}
        torch.onnx.export(model, args, str(path), dynamo=dynamo, **more)
        again = load_onnx(path)
        with torch.no_grad():
            torch.testing.assert_close(again(*args), model(*args), rtol=1e-4, atol=1e-4)
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Linear):
                assert isinstance(again.get_submodule(name), nn.Linear), name
