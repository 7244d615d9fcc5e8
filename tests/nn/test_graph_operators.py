# SPDX-License-Identifier: Apache-2.0
"""Every operator of the table against the reference of the package onnx."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import InputError
from gossamer.nn.operator_graph import GraphModule, OperatorPlan, PlanInput, Step
from gossamer.nn.operator_graph.operators import OPERATORS

pytest.importorskip("onnx")
from onnx import helper
from onnx.reference import ReferenceEvaluator

rng = np.random.default_rng(0)
INTERNAL = {
    "AutoPad", "ZeroPad", "FlatSoftmax", "QuantizeDequantize", "DynamicQuantizeDequantize",
    "ScaledAttention",
}  # fmt: skip


def reference(kind, inputs, attributes, outputs=1, opset=18):
    names = [f"i{n}" if value is not None else "" for n, value in enumerate(inputs)]
    results = [f"o{n}" for n in range(outputs)]
    node = helper.make_node(kind, names, results, **attributes)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), None)
        for name, value in zip(names, inputs, strict=True)
        if value is not None
    ]
    ends = [helper.make_tensor_value_info(name, 1, None) for name in results]
    graph = helper.make_graph([node], "g", infos, ends)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    feeds = {n: v for n, v in zip(names, inputs, strict=True) if v is not None}
    return ReferenceEvaluator(model).run(None, feeds)


def ours(kind, inputs, attributes):
    given_ = [None if value is None else torch.from_numpy(value) for value in inputs]
    settled = {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()}
    operator = OPERATORS[kind]
    assert operator.fault(len(given_), settled) is None
    made = operator.function(*given_, **settled)
    return [made] if isinstance(made, torch.Tensor) else list(made)


def check(kind, inputs, attributes, outputs=1, opset=19, mine=None):
    expected = reference(kind, inputs, attributes, outputs, opset)
    for one, other in zip(ours(kind, inputs, mine or attributes), expected, strict=False):
        other = torch.from_numpy(np.array(other))
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)


def real(*shape):
    return rng.normal(size=shape).astype(np.float32)


def whole(*values):
    return np.array(values, dtype=np.int64)


A, B, POSITIVE = real(2, 3, 4), real(3, 1), np.abs(real(2, 3)) + 0.1
CASES = [
    *((kind, [A, B], {}) for kind in ("Add", "Sub", "Mul", "Div", "Less", "Greater", "Equal")),
    *((kind, [A, B], {}) for kind in ("LessOrEqual", "GreaterOrEqual", "Max", "Min", "Sum")),
    ("Div", [whole(-7, 7, -8), whole(2, -2, 3)], {}),
    ("Mod", [whole(-7, 7, -8), whole(2, -2, 3)], {}),
    ("Mod", [A, B], {"fmod": 1}),
    ("Pow", [POSITIVE, np.float32(2.5)], {}),
    ("Pow", [whole(2, 3), whole(3, 2)], {}),
    *((kind, [A > 0, B > 0], {}) for kind in ("And", "Or", "Xor")),
    ("Not", [A > 0], {}),
    ("Where", [A > 0, A, B], {}),
    *((kind, [A], {}) for kind in ("Abs", "Ceil", "Erf", "Exp", "Floor", "Identity", "Neg")),
    *((kind, [A], {}) for kind in ("Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Tanh")),
    *((kind, [A], {}) for kind in ("Softplus", "HardSwish", "IsNaN", "HardSigmoid", "Size")),
    *((kind, [POSITIVE], {}) for kind in ("Log", "Sqrt")),
    ("Elu", [A], {"alpha": 0.5}),
    ("LeakyRelu", [A], {"alpha": 0.3}),
    ("Clip", [A, np.float32(-0.5), None], {}),
    ("Clip", [A, None, np.float32(0.5)], {}),
    ("Cast", [A], {"to": 7}),
    ("Cast", [A], {"to": 9}),
    ("Dropout", [A], {}),
    ("Concat", [A, real(2, 1, 4)], {"axis": -2}),
    ("ConstantOfShape", [whole(2, 3)], {}),
    ("CumSum", [A, whole(1).reshape(())], {"exclusive": 1, "reverse": 1}),
    ("CumSum", [A, whole(-1).reshape(())], {}),
    ("Expand", [B, whole(2, 1, 5)], {}),
    ("Flatten", [A], {"axis": 2}),
    ("Flatten", [A], {"axis": 0}),
    ("GatherElements", [A, rng.integers(-4, 4, (2, 3, 2))], {"axis": 2}),
    ("GatherND", [A, whole(1, 0, 0, 2).reshape(2, 2)], {}),
    ("GatherND", [A, whole(1, 2).reshape(2, 1)], {"batch_dims": 1}),
    ("Pad", [A, whole(0, 1, 2, 1, 0, 3), np.float32(5)], {}),
    ("Pad", [A, whole(0, 1, 2, 1, 0, 3)], {"mode": "edge"}),
    ("Pad", [A, whole(0, 1, 2, 0, 2, 3)], {"mode": "reflect"}),
    ("Range", [whole(7).reshape(()), whole(-4).reshape(()), whole(-3).reshape(())], {}),
    ("Range", [np.float32(1), np.float32(2.1), np.float32(0.25)], {}),
    ("Reshape", [A, whole(0, -1)], {}),
    ("Reshape", [A, whole(4, 0, 2)], {}),
    ("Shape", [A], {"start": 1}),
    ("Squeeze", [real(1, 3, 1), whole(0, -1)], {}),
    ("Squeeze", [real(1, 3, 1)], {}),
    ("Unsqueeze", [A, whole(-1, 0)], {}),
    ("Tile", [A, whole(1, 2, 3)], {}),
    ("Transpose", [A], {}),
    ("Transpose", [A], {"perm": [1, 2, 0]}),
    ("Trilu", [A], {}),
    ("Trilu", [A, whole(1).reshape(())], {"upper": 0}),
    ("ArgMax", [A], {"axis": 1, "keepdims": 0}),
    ("ArgMin", [np.round(A)], {"axis": -1, "select_last_index": 1}),
    *((kind, [A, whole(0, -1)], {}) for kind in ("ReduceMean", "ReduceMax", "ReduceMin")),
    *((f"Reduce{kind}", [A, whole(2, 0)], {"keepdims": 0}) for kind in ("Sum", "Prod", "L2")),
    ("ReduceSum", [A], {"noop_with_empty_axes": 1}),
    ("ReduceMean", [A], {}),
    ("Softmax", [A], {"axis": 1}),
    ("LogSoftmax", [A], {}),
    ("MatMul", [A, real(4, 2)], {}),
    ("MatMul", [real(4), real(2, 4, 3)], {}),
    ("Gemm", [real(4, 3), real(2, 4), real(2)], {"transA": 1, "transB": 1, "beta": 3.0}),
    ("Gemm", [real(4, 3), real(3, 2)], {"alpha": 0.5}),
    ("LayerNormalization", [A, real(4), real(4)], {"epsilon": 0.1}),
    ("LayerNormalization", [A, real(3, 4)], {"axis": 1}),
    ("BatchNormalization", [real(2, 3, 4), *(np.abs(real(3)) for _ in range(4))], {"epsilon": 0.1}),
    ("GlobalAveragePool", [real(2, 3, 4, 5)], {}),
    ("GlobalMaxPool", [real(2, 3, 4, 5)], {}),
    ("Conv", [real(1, 4, 9), real(6, 2, 3), real(6)], {"group": 2, "pads": [2, 0], "strides": [2]}),
    ("Conv", [real(1, 2, 5, 6), real(3, 2, 2, 3)], {"auto_pad": "SAME_UPPER"}),
    ("MaxPool", [real(1, 2, 7, 8)], {"kernel_shape": [3, 2], "pads": [1, 0, 0, 1]}),
    ("MaxPool", [real(1, 2, 8, 8)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("AveragePool", [real(1, 2, 7, 8)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("AveragePool", [real(1, 2, 7, 8)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1],
                                         "count_include_pad": 1}),
    ("AveragePool", [real(1, 2, 7, 8)], {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]}),
    ("QuantizeLinear", [A * 50, np.float32(0.5), np.uint8(100)], {}),
    ("QuantizeLinear", [A, np.abs(real(3)), np.zeros(3, dtype=np.int8)], {"axis": 1}),
    ("DequantizeLinear", [rng.integers(0, 255, (2, 3)).astype(np.uint8), np.float32(0.5),
                          np.uint8(3)], {}),
    ("MatMulInteger", [rng.integers(0, 255, (2, 3)).astype(np.uint8),
                       rng.integers(0, 255, (3, 2)).astype(np.uint8), np.uint8(3)], {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "inputs", "attributes"), CASES)
def test_operators_agree_with_the_reference(kind, inputs, attributes):
    inputs = [None if value is None else np.asarray(value) for value in inputs]
    check(kind, inputs, attributes)


def test_every_operator_has_a_case():
    elsewhere = {"Gelu", "Split", "Slice", "Gather", "DynamicQuantizeLinear", "ConvInteger"}
    assert {case[0] for case in CASES} | elsewhere | INTERNAL == set(OPERATORS)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate):
    check("Gelu", [A], {"approximate": approximate}, opset=20)


def test_the_old_softmax_takes_everything_from_the_axis_on_as_a_row():
    (found,) = ours("FlatSoftmax", [A], {"axis": 1})
    expected = np.exp(A) / np.exp(A).sum((1, 2), keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_negative_pads_cut():
    (found,) = ours("Pad", [A, whole(0, -1, 2, 1, 0, -1), np.asarray(5, dtype=np.float32)], {})
    expected = np.pad(A[:, 1:, :-1], ((0, 1), (0, 0), (2, 0)), constant_values=5)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_axes_as_attributes_of_older_opsets():
    for kind in ("ReduceMean", "ReduceSum"):
        opset = 12 if kind == "ReduceSum" else 17
        check(kind, [A], {"axes": [0, -1], "keepdims": 0}, opset=opset)
    check("Unsqueeze", [A], {"axes": [0, 4]}, opset=11)
    check("Squeeze", [real(1, 3)], {"axes": [0]}, opset=11)


def test_dynamic_quantisation_and_zeros():
    check("DynamicQuantizeLinear", [A], {}, outputs=3)
    codes, scale, zero = ours("DynamicQuantizeLinear", [np.zeros(3, dtype=np.float32)], {})
    assert codes.tolist() == [0, 0, 0]
    assert int(zero) == 0
    assert float(scale) == 1  # any other would do, but not 0


@pytest.mark.parametrize("sizes", [None, [2, 0, 3]])
def test_split(sizes):
    x = real(5, 2)
    inputs = [x] if sizes is None else [x, whole(*sizes)]
    attributes = {"num_outputs": 3} if sizes is None else {}
    check("Split", inputs, attributes, outputs=3, mine={"num_outputs": 3})


bounds = st.integers(-8, 8) | st.sampled_from([2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_slices_clamp_as_numpy_does(data):
    shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    axes = data.draw(st.lists(st.sampled_from(range(len(shape))), unique=True, min_size=1))
    starts, ends = (
        data.draw(st.lists(bounds, min_size=len(axes), max_size=len(axes))) for _ in "ab"
    )
    step = st.integers(-3, 3).filter(bool)
    steps = data.draw(st.lists(step, min_size=len(axes), max_size=len(axes)))
    x = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    index = [slice(None)] * len(shape)
    for axis, first, last, by in zip(axes, starts, ends, steps, strict=True):
        # numpy has no way to say "before the beginning" but None.
        low = last if by > 0 or last >= -shape[axis] else None
        index[axis] = slice(first, low, by)
    signed = [a - len(shape) if data.draw(st.booleans()) else a for a in axes]
    inputs = [x, whole(*starts), whole(*ends), whole(*signed), whole(*steps)]
    (found,) = ours("Slice", inputs, {})
    np.testing.assert_array_equal(found.numpy(), x[tuple(index)])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_gather_is_take(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    size = shape[axis]
    places = data.draw(st.lists(st.integers(-size, size - 1), max_size=4))
    form = data.draw(st.sampled_from([(-1,), (-1, 1), (1, -1)]))
    indices = np.array(places, dtype=np.int64).reshape(form if places else (0,))
    if len(places) == 1 and data.draw(st.booleans()):
        indices = indices.reshape(())
    x = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    (found,) = ours("Gather", [x, indices], {"axis": axis})
    np.testing.assert_array_equal(found.numpy(), np.take(x, indices, axis=axis))


@pytest.mark.parametrize("place", [3, -4, [0, 3], [-4, 0]])
def test_gather_outside_is_refused(place):
    with pytest.raises(InputError, match="but the dimension has 3 entries"):
        ours("Gather", [real(3, 2), np.array(place, dtype=np.int64)], {})


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_reshape_copies_zeros_and_infers_one(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    target = list(data.draw(st.permutations(shape)))
    wanted = [0 if i < len(shape) and shape[i] == n and data.draw(st.booleans()) else n
              for i, n in enumerate(target)]  # fmt: skip
    if data.draw(st.booleans()):
        wanted[data.draw(st.integers(0, len(wanted) - 1))] = -1
    x = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    check("Reshape", [x, whole(*wanted)], {})


def test_plans_are_checked():
    x = PlanInput("x", "float32", None)
    relu = Step("Relu", (0,), (1,))

    def build(*steps, outputs=(("y", 1),), layers=None, inputs=(x,)):
        return GraphModule(OperatorPlan(inputs, (), steps, outputs), layers or {}, {})

    assert float(build(relu)(torch.tensor(-1.0))) == 0
    linear = {"a": torch.nn.Linear(1, 1)}
    for steps, more, text in (
        ([Step("Relu", (1,), (1,))], {}, "before it is made"),
        ([Step("Relu", (0,), (0,))], {}, "there already"),
        ([Step("eval", (0,), (1,))], {}, "there is no operator 'eval'"),
        ([Step("Relu", (-1,), (1,))], {}, "is absent"),
        ([Step("Linear", (0,), (1,), layer="b")], {"layers": linear}, "no layer 'b'"),
        ([Step("Linear", (0, 0), (1,), layer="a")], {"layers": linear}, "takes one value"),
        ([relu], {"outputs": (("y", 5),)}, "nothing makes"),
        ([relu], {"outputs": ()}, "no outputs"),
        (
            [relu],
            {"layers": {"a": torch.nn.Linear(1, 1), "a.b": torch.nn.ReLU()}},
            "cannot be called",
        ),
        ([relu], {"layers": {"a-b": torch.nn.ReLU()}}, "cannot be called"),
    ):
        with pytest.raises(InputError, match=text):
            build(*steps, **more)
