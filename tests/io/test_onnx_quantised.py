# SPDX-License-Identifier: Apache-2.0
"""Quantised ONNX graphs: fp32 layers with the values that the codes stand for."""

import numpy as np
import pytest
import torch
from torch import nn

import gossamer
from gossamer.io import adopt_zeros, load_onnx

pytest.importorskip("onnx")
from onnx import TensorProto
from onnx_tools import Maker, run_reference

rng = np.random.default_rng(0)


def codes(*shape):
    """int8 weights, two thirds of them zero."""
    values = rng.integers(-127, 128, shape)
    return np.where(rng.random(shape) < 2 / 3, 0, values).astype(np.int8)


def scalar(make, value, kind="float32", name=""):
    return make.const(np.asarray(value, dtype=kind), name)


def compare(path, inputs, step):
    """The model, after its outputs were compared: equal up to ties of rounding."""
    model = load_onnx(path)
    expected = run_reference(path, inputs)
    with torch.no_grad():
        found = model(*(torch.from_numpy(value) for value in inputs.values()))
    found = [found] if isinstance(found, torch.Tensor) else found
    for one, other in zip(found, expected, strict=True):
        off = (one.double() - torch.from_numpy(other).double()).abs()
        assert one.shape == other.shape
        assert float(off.max()) <= 1.01 * step
        assert float((off > 1e-4 * max(1.0, step)).float().mean()) < 0.02
    return model


@pytest.mark.parametrize("per_channel", [False, True])
def test_pairs_around_a_product(tmp_path, per_channel):
    make = Maker(13)
    x = make.input("x", ["n", 16])
    scale, zero = scalar(make, 0.05), scalar(make, 120, "uint8")
    rounded = make.op("DequantizeLinear", make.op("QuantizeLinear", x, scale, zero), scale, zero)
    weight = codes(16, 8)
    steps = rng.uniform(0.01, 0.02, 8).astype(np.float32) if per_channel else np.float32(0.01)
    zeros = np.zeros_like(steps, dtype=np.int8)
    stored = make.const(weight, "fc.weight_quantized")
    real = make.op("DequantizeLinear", stored, make.const(steps), make.const(zeros), axis=1)
    y = make.op(
        "Add", make.op("MatMul", rounded, real), make.const(np.ones(8), "fc.bias", "float32")
    )
    make.result(y, "y")
    path = make.write(tmp_path / "m.onnx")
    model = compare(path, {"x": rng.normal(size=(5, 16)).astype(np.float32)}, 1e-4)
    assert isinstance(model.fc, nn.Linear)
    assert torch.equal(model.fc.weight == 0, torch.from_numpy(weight.T == 0))
    assert [step.operator for step in model.plan.steps] == ["QuantizeDequantize", "Linear"]
    scales = model.stored_scales["fc"]
    assert torch.equal(scales.weight, torch.from_numpy(np.atleast_1d(steps)))
    assert (scales.activation, scales.zero_point) == (pytest.approx(0.05), 120)
    assert [layer.name for layer in adopt_zeros(model)] == ["fc"]


def test_activations_can_keep_only_their_range(tmp_path):
    make = Maker(13)
    x = make.input("x", ["n", 4])
    scale, zero = scalar(make, 0.1), scalar(make, 0, "uint8")
    rounded = make.op("DequantizeLinear", make.op("QuantizeLinear", x, scale, zero), scale, zero)
    make.result(make.op("MatMul", rounded, make.const(np.eye(4), "fc.weight", "float32")), "y")
    path = make.write(tmp_path / "m.onnx")
    x = torch.tensor([[-3.0, 0.123, 7.0, 99.0]])
    # A zero point of 0 stands for a ReLU, and 255 steps for a limit.
    assert torch.allclose(load_onnx(path)(x), torch.tensor([[0.0, 0.1, 7.0, 25.5]]))
    smooth = load_onnx(path, activation_rounding=False)
    assert torch.allclose(smooth(x), torch.tensor([[0.0, 0.123, 7.0, 25.5]]))


def qlinear_conv(make, x, weight, name, *, bias=True):
    scales = rng.uniform(0.01, 0.02, weight.shape[0]).astype(np.float32)
    parts = [
        x, scalar(make, 0.04), scalar(make, 10, "uint8"),
        make.const(weight, f"{name}.weight_quantized"), make.const(scales),
        make.const(np.zeros(weight.shape[0], dtype=np.int8)),
        scalar(make, 0.04), scalar(make, 10, "uint8"),
    ]  # fmt: skip
    if bias:
        parts.append(make.const(rng.integers(-500, 500, weight.shape[0]).astype(np.int32)))
    return make.op("QLinearConv", *parts, pads=[1, 1, 1, 1])


def test_convolutions_of_integers(tmp_path):
    make = Maker(13)
    x = make.input("x", [1, 3, 8, 8])
    q = make.op("QuantizeLinear", x, scalar(make, 0.04), scalar(make, 10, "uint8"))
    first, second = codes(8, 3, 3, 3), codes(4, 8, 3, 3)
    q = qlinear_conv(make, q, first, "one")
    q = make.op("MaxPool", q, kernel_shape=[2, 2], strides=[2, 2])
    q = qlinear_conv(make, q, second, "two", bias=False)
    y = make.op("DequantizeLinear", q, scalar(make, 0.04), scalar(make, 10, "uint8"))
    make.result(y, "y")
    path = make.write(tmp_path / "m.onnx")
    model = compare(path, {"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)}, 2 * 0.04)
    assert isinstance(model.one, nn.Conv2d)
    assert isinstance(model.two, nn.Conv2d)
    assert torch.equal(model.one.weight == 0, torch.from_numpy(first == 0))
    assert set(model.stored_scales) == {"one", "two"}


def test_products_of_integers_with_eight_inputs(tmp_path):
    make = Maker(13)
    x = make.input("x", [3, 16])
    x_scale, x_zero = scalar(make, 0.04), scalar(make, 128, "uint8")
    q = make.op("QuantizeLinear", x, x_scale, x_zero)
    weight, scale = make.const(codes(16, 8), "fc.weight"), scalar(make, 0.01)
    y_scale, y_zero = scalar(make, 0.05), scalar(make, 100, "uint8")
    zero = scalar(make, 0, "int8")
    q = make.op("QLinearMatMul", q, x_scale, x_zero, weight, scale, zero, y_scale, y_zero)
    make.result(make.op("DequantizeLinear", q, y_scale, y_zero), "y")
    path = make.write(tmp_path / "m.onnx")
    model = compare(path, {"x": rng.normal(size=(3, 16)).astype(np.float32)}, 0.05)
    assert isinstance(model.fc, nn.Linear)


@pytest.mark.parametrize("with_bias", [False, True])
def test_integer_products_scaled_afterwards(tmp_path, with_bias):
    make = Maker(13)
    x = make.input("x", [3, 16])
    x_scale, x_zero = scalar(make, 0.04), scalar(make, 128, "uint8")
    q = make.op("QuantizeLinear", x, x_scale, x_zero)
    y = make.op("MatMulInteger", q, make.const(codes(16, 8), "fc.weight"), x_zero)
    if with_bias:
        y = make.op("Add", y, make.const(rng.integers(-900, 900, 8).astype(np.int32)))
    y = make.op("Mul", make.op("Cast", y, to=TensorProto.FLOAT), scalar(make, 0.04 * 0.01))
    make.result(y, "y")
    path = make.write(tmp_path / "m.onnx")
    model = compare(path, {"x": rng.normal(size=(3, 16)).astype(np.float32)}, 1e-4)
    assert isinstance(model.fc, nn.Linear)
    assert (model.fc.bias is not None) == with_bias
    torch.testing.assert_close(model.stored_scales["fc"].weight, torch.tensor([0.01]))


def test_dynamically_quantised_products(tmp_path):
    make = Maker(13)
    x = make.input("x", ["n", 16])
    q, scale, zero = make.op("DynamicQuantizeLinear", x, outputs=3)
    weight = make.const(codes(16, 8), "fc.weight")
    y = make.op("MatMulInteger", q, weight, zero, scalar(make, 0, "int8"))
    factor = make.op("Mul", scale, make.const(rng.uniform(0.01, 0.02, 8), kind="float32"))
    y = make.op("Mul", make.op("Cast", y, to=TensorProto.FLOAT), factor)
    make.result(make.op("Add", y, make.const(np.ones(8), "fc.bias", "float32")), "y")
    path = make.write(tmp_path / "m.onnx")
    model = compare(path, {"x": rng.normal(size=(3, 16)).astype(np.float32)}, 1e-4)
    assert [s.operator for s in model.plan.steps] == ["DynamicQuantizeDequantize", "Linear"]
    assert load_onnx(path, activation_rounding=False).plan.steps[0].operator == "Linear"
    assert model.stored_scales["fc"].activation is None


def test_integer_products_that_fit_no_pattern_are_exact(tmp_path):
    make = Maker(13)
    a = make.input("a", [3, 300], "uint8")
    b = make.input("b", [300, 4], "uint8")
    zero = scalar(make, 3, "uint8")
    make.result(make.op("MatMulInteger", a, b, zero, scalar(make, 250, "uint8")), "y", "int32")
    image = make.input("c", [1, 2, 6, 6], "uint8")
    weight = make.const(rng.integers(0, 256, (3, 2, 3, 3)).astype(np.uint8))
    make.result(make.op("ConvInteger", image, weight, zero, pads=[1, 1, 0, 0]), "z", "int32")
    path = make.write(tmp_path / "m.onnx")
    shapes = {"a": (3, 300), "b": (300, 4), "c": (1, 2, 6, 6)}
    inputs = {k: rng.integers(0, 256, s).astype(np.uint8) for k, s in shapes.items()}
    compare(path, inputs, 0.0)


def test_a_quantised_model_is_compiled_in_int8(tmp_path):
    make = Maker(13)
    x = make.input("x", ["n", 64])
    stored = make.const(codes(64, 64), "fc.weight")
    real = make.op("DequantizeLinear", stored, scalar(make, 0.01), scalar(make, 0, "int8"))
    make.result(make.op("MatMul", x, real), "y")
    model = load_onnx(make.write(tmp_path / "m.onnx"))
    x = torch.randn(64, 64)
    with torch.no_grad():
        expected = model(x)
        fast = gossamer.compile(model, tokens=64, precision="int8", kernel="int8_panel")
        error = (fast(x) - expected).norm() / expected.norm()
    assert {row.kernel for row in gossamer.explain(fast)} == {"int8_panel"}
    assert float(error) < 0.03
