# SPDX-License-Identifier: Apache-2.0
"""An encoder as an ONNX graph, as exporters write it: opset 13, LayerNorm and GELU decomposed.

The arrays are those of `running/encoder/arrays.py`. Inputs of the graph are `ids` and `mask` [B,
T], its output is the last hidden state [B, T, D].
"""

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET, _IR = 13, 8
# Added to the scores of padding.
_FAR_BELOW = -10000.0


def save_encoder(arrays, shape, path):
    """Write the graph for ids of one shape (B, T)."""
    graph = _Graph()
    words = graph.add("Gather", graph.keep(arrays["word"]), "ids")
    x = graph.add("Add", words, graph.keep(arrays["position"]))
    x = graph.norm(x, arrays, "norm", arrays["norm.epsilon"])
    live = graph.add("Cast", "mask", to=TensorProto.FLOAT)
    padding = graph.add("Mul", graph.add("Sub", graph.scalar(1), live), graph.scalar(_FAR_BELOW))
    bias = graph.add("Unsqueeze", padding, graph.keep(np.array([1, 2])))
    for number in range(int(arrays["layers"])):
        layer = {
            name.removeprefix(f"{number}."): array
            for name, array in arrays.items()
            if name.startswith(f"{number}.")
        }
        x = _layer(graph, x, bias, layer, shape)
    graph.nodes[-1].output[0] = "hidden"
    features = arrays["word"].shape[1]
    made = helper.make_graph(
        graph.nodes,
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("ids", "mask")],
        [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [*shape, features])],
        graph.constants,
    )
    opset = [helper.make_opsetid("", _OPSET)]
    onnx.save(helper.make_model(made, opset_imports=opset, ir_version=_IR), path)


def weight_products(path):
    """Names of the MatMuls of a graph whose second factor is a weight."""
    graph = onnx.load(path).graph
    weights = {constant.name for constant in graph.initializer}
    return [n.name for n in graph.node if n.op_type == "MatMul" and n.input[1] in weights]


def _layer(graph, x, bias, layer, shape):
    heads, width = int(layer["heads"]), int(layer["head_width"])
    split = graph.keep(np.array([*shape, heads, width]))

    def projected(name, order):
        return graph.add(
            "Transpose", graph.add("Reshape", graph.linear(x, layer, name), split), perm=order
        )

    query, value = (projected(name, [0, 2, 1, 3]) for name in ("query", "value"))
    scores = graph.add("MatMul", query, projected("key", [0, 2, 3, 1]))
    scores = graph.add("Add", graph.add("Mul", scores, graph.scalar(layer["scale"])), bias)
    mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), value)
    mixed = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = graph.add("Reshape", mixed, graph.keep(np.array([*shape, heads * width])))

    x = graph.add("Add", graph.linear(mixed, layer, "out"), x)
    x = graph.norm(x, layer, "attention_norm", layer["epsilon"])
    inner = graph.activation(graph.linear(x, layer, "up"), str(layer["activation"]))
    x = graph.add("Add", graph.linear(inner, layer, "down"), x)
    return graph.norm(x, layer, "output_norm", layer["epsilon"])


class _Graph:
    """Nodes and constants as they are added; values are known by name."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def keep(self, array):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def scalar(self, value):
        return self.keep(np.array(value, np.float32))

    def add(self, kind, *inputs, **attributes):
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(kind, inputs, [f"v{len(self.nodes)}"], name, **attributes)
        )
        return self.nodes[-1].output[0]

    def linear(self, x, layer, name):
        product = self.add("MatMul", x, self.keep(layer[f"{name}.weight"].T))
        return self.add("Add", product, self.keep(layer[f"{name}.bias"]))

    def norm(self, x, arrays, name, epsilon):
        centred = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1]))
        spread = self.add("ReduceMean", self.add("Pow", centred, self.scalar(2)), axes=[-1])
        deviation = self.add("Sqrt", self.add("Add", spread, self.scalar(epsilon)))
        scaled = self.add("Div", centred, deviation)
        scaled = self.add("Mul", scaled, self.keep(arrays[f"{name}.gain"]))
        return self.add("Add", scaled, self.keep(arrays[f"{name}.shift"]))

    def activation(self, x, kind):
        if kind == "relu":
            return self.add("Relu", x)
        if kind == "silu":
            return self.add("Mul", x, self.add("Sigmoid", x))
        erf = self.add("Erf", self.add("Div", x, self.scalar(math.sqrt(2))))
        half = self.add("Mul", x, self.add("Add", erf, self.scalar(1)))
        return self.add("Mul", half, self.scalar(0.5))
