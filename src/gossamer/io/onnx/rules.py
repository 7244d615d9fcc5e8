# SPDX-License-Identifier: Apache-2.0
"""What opsets say differently, and operators that stand for a few others."""

from gossamer.errors import InputError
from gossamer.io.onnx.graph import Graph, Node

# Operators that are written as others when a file is read.
LOWERED = frozenset({"QLinearMatMul", "QLinearConv"})
# Outputs that are computed; 0 stands for all of them, everything else has one.
UNIQUE_OUTPUTS = {"Split": 0, "DynamicQuantizeLinear": 3}
# Attributes that may be there with the value that means "as ever".
_NEUTRAL = {"block_size": 0, "output_dtype": 0, "precision": 0}
_QUANTISING = ("QuantizeLinear", "DequantizeLinear")
_WITH_ROWS = ("Softmax", "LogSoftmax")


def normalise(node: Node, opset: int) -> None:
    """Rewrite a node of any opset as the table means it."""
    for name, value in _NEUTRAL.items():
        if node.operator in _QUANTISING and node.attributes.get(name) == value:
            del node.attributes[name]
    if node.operator == "Split":
        node.attributes["num_outputs"] = len(node.outputs)
    if node.operator == "BatchNormalization":
        # Running statistics are an output in training only.
        node.attributes.pop("momentum", None)
    while node.inputs and not node.inputs[-1]:
        node.inputs.pop()
    if node.operator in _WITH_ROWS and opset < 13:
        node.attributes.setdefault("axis", 1)
        node.operator = "FlatSoftmax" if node.operator == "Softmax" else "FlatLogSoftmax"


def lower(node: Node, graph: Graph) -> list[Node]:
    """The nodes that compute what `node` does, with operators of the table."""
    if node.operator == "QLinearMatMul":
        return _lower_matmul(node, graph)
    if node.operator == "QLinearConv":
        return _lower_conv(node, graph)
    if node.operator == "FlatLogSoftmax":
        rows = graph.value()
        return [
            Node("FlatSoftmax", node.inputs, [rows], node.attributes, node.name),
            Node("Log", [rows], node.outputs, {}, node.name),
        ]
    return [node]


def _lower_matmul(node: Node, graph: Graph) -> list[Node]:
    """Q(DQ(a) DQ(b)): sums are those of floats, so a tie may round to the neighbour."""
    if len(node.inputs) != 8:
        raise InputError(f"{len(node.inputs)} inputs, expected 8.")
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = node.inputs
    left, right, product = graph.value(), graph.value(), graph.value()
    return [
        Node("DequantizeLinear", [a, a_scale, a_zero], [left], {"axis": -2}, node.name),
        Node("DequantizeLinear", [b, b_scale, b_zero], [right], {"axis": -1}, node.name),
        Node("MatMul", [left, right], [product], {}, node.name),
        Node("QuantizeLinear", [product, scale, zero], node.outputs, {"axis": -1}, node.name),
    ]


def _lower_conv(node: Node, graph: Graph) -> list[Node]:
    if len(node.inputs) not in (8, 9):
        raise InputError(f"{len(node.inputs)} inputs, expected 8 or 9.")
    x, x_scale, x_zero, weight, w_scale, w_zero, scale, zero = node.inputs[:8]
    image, kernel, product = graph.value(), graph.value(), graph.value()
    nodes = [
        Node("DequantizeLinear", [x, x_scale, x_zero], [image], {"axis": 1}, node.name),
        Node("DequantizeLinear", [weight, w_scale, w_zero], [kernel], {"axis": 0}, node.name),
        Node("QuantizeLinear", [product, scale, zero], node.outputs, {"axis": 1}, node.name),
    ]
    inputs = [image, kernel]
    if node.input(8):
        # The bias is int32 in units of x_scale * w_scale.
        unit, bias = graph.value(), graph.value()
        nodes.append(Node("Mul", [x_scale, w_scale], [unit], {}, node.name))
        nodes.append(
            Node("DequantizeLinear", [node.inputs[8], unit], [bias], {"axis": 0}, node.name)
        )
        inputs.append(bias)
    nodes.append(Node("Conv", inputs, [product], node.attributes, node.name))
    return nodes
