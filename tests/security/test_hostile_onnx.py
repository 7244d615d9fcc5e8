# SPDX-License-Identifier: Apache-2.0
"""ONNX files from strangers: our error that names what is wrong, never a crash or a huge tensor."""

import random

import numpy as np
import pytest
import torch

from gossamer.errors import ArtifactError, GossamerError, ResourceError
from gossamer.io import load_onnx

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_tools import Maker  # noqa: E402


def linear(opset=14):
    make = Maker(opset)
    x = make.input("x", ["n", 4])
    y = make.op("MatMul", x, make.const(np.ones((4, 3)), "fc.weight", "float32"), name="product")
    make.result(y, "y")
    return make


def write(proto, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_no_onnx_file_and_every_truncation(tmp_path):
    path = tmp_path / "m.onnx"
    for raw in (b"", b"GGUF" + bytes(40), b"\xff" * 200, bytes(1000)):
        path.write_bytes(raw)
        with pytest.raises(ArtifactError, match=r"m\.onnx"):
            load_onnx(path)
    whole = linear().model().SerializeToString()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(ArtifactError, match=r"m\.onnx"):
            load_onnx(path)
    with pytest.raises(ArtifactError, match="no regular file"):
        load_onnx(tmp_path)


def test_changed_bytes_never_crash(tmp_path):
    whole = bytearray(linear().model().SerializeToString())
    dice = random.Random(0)  # noqa: S311
    path = tmp_path / "m.onnx"
    for _ in range(400):
        raw = bytearray(whole)
        for _ in range(dice.choice((1, 2, 5))):
            raw[dice.randrange(len(raw))] = dice.randrange(256)
        path.write_bytes(raw)
        try:
            model = load_onnx(path)
            model(torch.ones(2, 4))
        except GossamerError:
            pass


def test_unknown_operators_are_named_with_their_node_and_the_known_ones(tmp_path):
    for domain, kind in (("", "Loop"), ("", "If"), ("com.microsoft", "Attention"), ("", "NoSuch")):
        make = linear()
        make.nodes.append(helper.make_node(kind, ["x"], ["z"], name="bad one", domain=domain))
        with pytest.raises(
            ArtifactError, match=rf"'bad one' is of the operator '.*{kind}'.*MatMul"
        ):
            load_onnx(write(make.model(), tmp_path))


@pytest.mark.parametrize("opset", [0, 1, 10, 99])
def test_opsets_nobody_checked(tmp_path, opset):
    with pytest.raises(ArtifactError, match=rf"opset {opset} cannot be read; expected 11 to 23"):
        load_onnx(write(linear(opset).model(), tmp_path))


def test_cycles_missing_and_doubled_values(tmp_path):
    make = linear()
    make.nodes += [
        helper.make_node("Add", ["x", "q"], ["p"], name="first"),
        helper.make_node("Relu", ["p"], ["q"], name="second"),
    ]
    make.outputs.append(helper.make_tensor_value_info("q", 1, None))
    with pytest.raises(ArtifactError, match="the graph is cyclic"):
        load_onnx(write(make.model(), tmp_path))
    make = linear()
    make.nodes.append(helper.make_node("Add", ["x", "nowhere"], ["z"], name="sum"))
    with pytest.raises(ArtifactError, match=r"'sum' \(Add\) uses 'nowhere', which nothing makes"):
        load_onnx(write(make.model(), tmp_path))
    make = linear()
    make.nodes.append(helper.make_node("Relu", ["x"], ["y"], name="again"))
    with pytest.raises(ArtifactError, match=r"'again' \(Relu\) makes 'y', which is there"):
        load_onnx(write(make.model(), tmp_path))
    make = linear()
    make.outputs.append(helper.make_tensor_value_info("gone", 1, None))
    with pytest.raises(ArtifactError, match="the output list uses 'gone'"):
        load_onnx(write(make.model(), tmp_path))


def test_a_deep_graph_is_no_recursion(tmp_path):
    make = Maker()
    x = make.input("x", [1])
    for _ in range(5000):
        x = make.op("Relu", x)
    make.result(x, "y")
    assert float(load_onnx(make.write(tmp_path / "m.onnx"))(torch.ones(1))) == 1


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "text"),
    [
        ("Relu", ["x", "x"], {}, "2 inputs, expected 1 to 1"),
        ("Add", ["x"], {}, "1 inputs, expected 2 to 2"),
        ("Add", ["x", ""], {}, "1 inputs"),
        ("Softmax", ["x"], {"axis": 0.5}, "must be a whole number, got 0.5"),
        ("Softmax", ["x"], {"evil": 1}, "attribute 'evil' is not computed; known: axis"),
        ("Concat", ["x"], {}, "attribute 'axis' is missing"),
        ("Transpose", ["x"], {"perm": "ab"}, "must be a list of whole numbers"),
        ("QLinearMatMul", ["x"], {}, "1 inputs, expected 8"),
        ("Constant", [], {"value_string": "x"}, "'value_string' cannot be read"),
        ("Constant", [], {}, "expected one attribute"),
    ],
)
def test_malformed_nodes_are_named(tmp_path, kind, inputs, attributes, text):
    make = linear()
    make.nodes.append(helper.make_node(kind, inputs, ["z"], name="bad", **attributes))
    with pytest.raises(ArtifactError, match=text) as caught:
        load_onnx(write(make.model(), tmp_path))
    assert "'bad'" in str(caught.value)


def test_tensors_that_lie_about_their_size(tmp_path):
    for change, text in (
        (lambda t: t.dims.__setitem__(0, 5), "needs 60 bytes, found 48"),
        (lambda t: t.dims.__setitem__(0, -4), "a dimension must be in"),
        (lambda t: t.dims.__setitem__(0, 2**41), "a dimension must be in"),
        (lambda t: t.dims.extend([2**30, 2**30]), "more than the limit"),
        (lambda t: t.dims.extend([1] * 9), "at most 8 dimensions"),
        (lambda t: setattr(t, "data_type", TensorProto.STRING), "data type 8 cannot be read"),
        (lambda t: setattr(t, "data_type", 77), "data type 77"),
        (lambda t: t.ClearField("raw_data"), "needs 12 numbers, found 0"),
    ):
        proto = linear().model()
        change(proto.graph.initializer[0])
        with pytest.raises(GossamerError, match=text) as caught:
            load_onnx(write(proto, tmp_path))
        assert "'fc.weight'" in str(caught.value)


def test_memory_is_refused_before_it_is_taken(tmp_path):
    path = write(linear().model(), tmp_path)
    with pytest.raises(ResourceError, match="max_bytes"):
        load_onnx(path, max_bytes=10)
    make = Maker()
    values = numpy_helper.from_array(np.ones(1, dtype=np.float32), "huge")
    places = numpy_helper.from_array(np.zeros(1, dtype=np.int64), "places")
    make.sparse.append(helper.make_sparse_tensor(values, places, [2**20, 2**20]))
    make.result(make.op("MatMul", make.input("x", [1, 2**20]), "huge"), "y")
    with pytest.raises(ResourceError, match="max_bytes"):
        load_onnx(make.write(tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([0, 12], "outside of the shape"),
        ([-1, 3], "outside of the shape"),
        ([3, 3], "not ascending"),
        ([[0, 0], [0, 3]], "outside of the shape"),
        ([[0, 0, 0], [0, 1, 0]], "expected"),
        ([1], "expected"),
    ],
)
def test_sparse_tensors_with_wrong_places(tmp_path, indices, text):
    make = Maker()
    values = numpy_helper.from_array(np.ones(2, dtype=np.float32), "w")
    places = numpy_helper.from_array(np.array(indices, dtype=np.int64), "places")
    proto = onnx.SparseTensorProto()
    proto.values.CopyFrom(values)
    proto.indices.CopyFrom(places)
    proto.dims.extend([4, 3])
    make.sparse.append(proto)
    make.result(make.op("MatMul", make.input("x", [1, 4]), "w"), "y")
    with pytest.raises(ArtifactError, match=text):
        load_onnx(make.write(tmp_path / "m.onnx"))


def test_few_bytes_that_ask_for_much(tmp_path):
    make = Maker()
    x = make.input("x", [1])
    sizes = make.const(np.array([2**30, 2**30], dtype=np.int64))
    make.result(make.op("Mul", x, make.op("ConstantOfShape", sizes)), "y")
    model = load_onnx(make.write(tmp_path / "m.onnx"))
    with pytest.raises(GossamerError, match="ConstantOfShape: asks for a tensor"):
        model(torch.ones(1))
    make = Maker()
    x, grown = make.input("x", [1]), make.const(np.ones(8, dtype=np.float32))
    for _ in range(60):
        grown = make.op("Concat", grown, grown, axis=0)
    make.result(make.op("Add", x, make.op("ReduceSum", grown)), "y")
    # It loads, because nothing of that size is made of constants.
    assert len(load_onnx(make.write(tmp_path / "m.onnx")).plan.steps) > 30


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", "", "link.bin", "a\\b"]
)
def test_external_data_outside_of_the_folder(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    proto = linear().model()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    with pytest.raises(ArtifactError, match="folder of the model"):
        load_onnx(write(proto, folder))


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"offset": "-1"}, "expected a number"),
        ({"length": "9" * 30}, "expected a number"),
        ({"offset": "4"}, "expected 48 bytes at 4"),
        ({"length": "40"}, "expected 48 bytes at 0"),
        ({"offset": "1000", "length": "48"}, "expected 48 bytes at 1000"),
    ],
)
def test_external_data_that_is_not_there(tmp_path, extra, text):
    (tmp_path / "w.bin").write_bytes(bytes(48))
    proto = linear().model()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", **extra}.items():
        tensor.external_data.add(key=key, value=value)
    with pytest.raises(ArtifactError, match=text):
        load_onnx(write(proto, tmp_path))


def test_shapes_that_do_not_fit_are_named_when_they_are_run(tmp_path):
    make = Maker()
    x = make.input("x", None)
    y = make.op("MatMul", x, make.const(np.ones((4, 3)), "fc.weight", "float32"))
    make.result(y, "y")
    model = load_onnx(make.write(tmp_path / "m.onnx"))
    with pytest.raises(GossamerError, match=r"\(fc\): cannot be computed on shapes \[2, 5\]"):
        model(torch.ones(2, 5))
    make = Maker()
    bad = make.op("Add", make.const(np.ones(3)), make.const(np.ones(4)), name="bad")
    make.result(make.op("Add", make.input("x", [1]), bad), "y")
    with pytest.raises(ArtifactError, match=r"'bad' \(Add\) cannot be computed from its constants"):
        load_onnx(make.write(tmp_path / "m.onnx"))
