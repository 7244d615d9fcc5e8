# SPDX-License-Identifier: Apache-2.0
"""What opsets say differently, and operators that stand for a few others."""

from collections.abc import Callable

from gossamer.errors import InputError
from gossamer.io.onnx.graph import Node, OnnxGraph
from gossamer.nn.operator_graph.operators import Attribute

# Outputs that are computed; None stands for all of them, everything else has one.
UNIQUE_OUTPUTS = {"Split": None, "DynamicQuantizeLinear": 3}
# Attributes that may be there with the value that means "as ever".
_NEUTRAL = {"block_size": 0, "output_dtype": 0, "precision": 0}
_QUANTISING = ("QuantizeLinear", "DequantizeLinear")
# Before opset 13 everything from the axis on was one row.
_FLAT = {"Softmax": "FlatSoftmax", "LogSoftmax": "FlatLogSoftmax"}

# Appends a step, an operator with inputs and attributes, and gives the value that it makes.
Add = Callable[..., str]


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
    if node.operator in _FLAT and opset < 13:
        node.attributes.setdefault("axis", 1)
        node.operator = _FLAT[node.operator]


def lower(node: Node, graph: OnnxGraph) -> list[Node]:
    """The nodes that compute what `node` does, with operators of the table."""
    if node.operator not in LOWERED:
        return [node]
    steps: list[Node] = []

    def add(operator: str, *inputs: str, **attributes: Attribute) -> str:
        """The value that the next step makes."""
        made = graph.value()
        steps.append(Node(operator, list(inputs), [made], attributes, node.name))
        return made

    LOWERED[node.operator](node, add)
    # What the last step makes is what the node makes.
    steps[-1].outputs = node.outputs
    return steps


def _lower_matmul(node: Node, add: Add) -> None:
    """Q(DQ(a) DQ(b)): sums are those of floats, so a tie may round to the neighbour."""
    if len(node.inputs) != 8:
        raise InputError(f"{len(node.inputs)} inputs, expected 8.")
    left = add("DequantizeLinear", *node.inputs[:3], axis=-2)
    right = add("DequantizeLinear", *node.inputs[3:6], axis=-1)
    add("QuantizeLinear", add("MatMul", left, right), *node.inputs[6:], axis=-1)


def _lower_conv(node: Node, add: Add) -> None:
    if len(node.inputs) not in (8, 9):
        raise InputError(f"{len(node.inputs)} inputs, expected 8 or 9.")
    inputs = [
        add("DequantizeLinear", *node.inputs[:3], axis=1),
        add("DequantizeLinear", *node.inputs[3:6], axis=0),
    ]
    if node.input(8):
        # The bias is int32 in units of the scale of x times that of the weight.
        unit = add("Mul", node.inputs[1], node.inputs[4])
        inputs.append(add("DequantizeLinear", node.inputs[8], unit, axis=0))
    add("QuantizeLinear", add("Conv", *inputs, **node.attributes), *node.inputs[6:8], axis=1)


def _lower_log_softmax(node: Node, add: Add) -> None:
    add("Log", add("FlatSoftmax", *node.inputs, **node.attributes))


# Operators that are written as others when a file is read.
LOWERED = {
    "FlatLogSoftmax": _lower_log_softmax,
    "QLinearConv": _lower_conv,
    "QLinearMatMul": _lower_matmul,
}
