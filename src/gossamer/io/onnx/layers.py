# SPDX-License-Identifier: Apache-2.0
"""Products with constant weights as the Linear and Conv2d layers everything else works on."""

import torch
from torch import nn

from gossamer.errors import ArtifactError
from gossamer.io.onnx.graph import Graph, Node
from gossamer.nn.operator_graph.windows import Sizes

# Pads of a convolution that keep the size: their amount depends on the image.
_SAME = ("SAME_UPPER", "SAME_LOWER")


@torch.no_grad()
def make_layers(graph: Graph) -> None:
    """MatMul and Gemm (with the bias behind them) and two-dimensional Conv, as layers."""
    shared: dict[str, nn.Parameter] = {}
    for node in graph.nodes("Gemm"):
        _gemm(graph, node, shared)
    for node in graph.nodes("MatMul"):
        _matmul(graph, node, shared)
    for node in graph.nodes("Conv"):
        _conv(graph, node)


def _matmul(graph: Graph, node: Node, shared: dict[str, nn.Parameter]) -> None:
    weight = node.inputs[1]
    if not _is_matrix(graph, weight):
        return
    outputs, bias, gone = node.outputs, "", [node]
    add = graph.sole_user(node.outputs[0])
    if add is not None and add.operator == "Add":
        other = [value for value in add.inputs if value != node.outputs[0]]
        if len(other) == 1 and _is_bias(graph, other[0], weight, dim=1):
            outputs, bias, gone = add.outputs, other[0], [node, add]
    if weight not in shared:
        shared[weight] = nn.Parameter(graph.constants[weight].T.contiguous())
    shift = None if not bias else graph.constants[bias].clone()
    layer = Node("Linear", node.inputs[:1], outputs, {}, graph.title(node, weight, bias))
    layer.layer = _linear(shared[weight], shift)
    _note_scale(graph, layer, weight)
    graph.remove(*gone)
    graph.add(layer)


def _gemm(graph: Graph, node: Node, shared: dict[str, nn.Parameter]) -> None:
    weight, bias = node.inputs[1], node.input(2)
    turned = bool(node.attributes.get("transB", 0))
    if not _is_matrix(graph, weight) or node.attributes.get("transA", 0):
        return
    if bias and not _is_bias(graph, bias, weight, dim=0 if turned else 1):
        return
    alpha, beta = (node.number(name, 1.0) for name in ("alpha", "beta"))
    values = graph.constants[weight] if turned else graph.constants[weight].T
    key = f"{weight}:{turned}:{alpha}"
    if key not in shared:
        shared[key] = nn.Parameter((values if alpha == 1 else alpha * values).contiguous())
    shift = None if not bias else beta * graph.constants[bias]
    layer = Node("Linear", node.inputs[:1], node.outputs, {}, graph.title(node, weight, bias))
    layer.layer = _linear(shared[key], shift)
    _note_scale(graph, layer, weight)
    graph.remove(node)
    graph.add(layer)


def _linear(weight: nn.Parameter, bias: torch.Tensor | None) -> nn.Linear:
    rows, columns = weight.shape
    layer = nn.Linear(columns, rows, bias is not None, device="meta", dtype=weight.dtype)
    layer.weight = weight
    if bias is not None:
        layer.bias = nn.Parameter(bias)
    return layer


def _conv(graph: Graph, node: Node) -> None:
    weight, bias = node.inputs[1], node.input(2)
    values = graph.constants.get(weight)
    if values is None or values.ndim != 4 or not values.is_floating_point():
        return
    if bias and (bias not in graph.constants or graph.constants[bias].shape != values.shape[:1]):
        return
    group = node.attributes.get("group", 1)
    if not isinstance(group, int) or group < 1 or values.shape[0] % group:
        return
    strides = _pair(node, "strides", (1, 1))
    dilations = _pair(node, "dilations", (1, 1))
    source, padding = _padding(graph, node, (values.shape[2], values.shape[3]), strides, dilations)
    conv = nn.Conv2d(
        values.shape[1] * group,
        values.shape[0],
        (values.shape[2], values.shape[3]),
        strides,  # type: ignore[arg-type]
        padding,
        dilations,  # type: ignore[arg-type]
        group,
        bool(bias),
        device="meta",
        dtype=values.dtype,
    )
    conv.weight = nn.Parameter(values.contiguous())
    if bias:
        conv.bias = nn.Parameter(graph.constants[bias].clone())
    layer = Node("Conv2d", [source], node.outputs, {}, graph.title(node, weight, bias), conv)
    _note_scale(graph, layer, weight)
    graph.remove(node)
    graph.add(layer)


def _padding(
    graph: Graph, node: Node, kernel: Sizes, strides: Sizes, dilations: Sizes
) -> tuple[str, tuple[int, int]]:
    """(what the layer reads, padding it does itself); other padding is a step before it."""
    mode = str(node.attributes.get("auto_pad", "NOTSET"))
    pads = _pair(node, "pads", (0, 0, 0, 0)) if mode == "NOTSET" else (0, 0, 0, 0)
    if mode not in _SAME and pads[:2] == pads[2:]:
        return node.inputs[0], (pads[0], pads[1])
    padded = graph.value()
    if mode in _SAME:
        around = {"mode": mode, "kernel": kernel, "strides": strides, "dilations": dilations}
        graph.add(Node("AutoPad", node.inputs[:1], [padded], around, node.name))  # type: ignore[arg-type]
    else:
        graph.add(Node("ZeroPad", node.inputs[:1], [padded], {"pads": pads}, node.name))
    return padded, (0, 0)


def _pair(node: Node, name: str, default: Sizes) -> Sizes:
    value = node.attributes.get(name, default)
    if not isinstance(value, tuple) or len(value) != len(default) or min(value) < 0:
        raise ArtifactError(
            f"{node}: the attribute {name!a} must be {len(default)} sizes for a weight of four"
            f" dimensions, got {ascii(value)[:80]}."
        )
    return value


def _is_matrix(graph: Graph, value: str) -> bool:
    tensor = graph.constants.get(value)
    return tensor is not None and tensor.ndim == 2 and tensor.is_floating_point()


def _is_bias(graph: Graph, value: str, weight: str, dim: int) -> bool:
    tensor = graph.constants.get(value)
    return tensor is not None and tensor.shape == (graph.constants[weight].shape[dim],)


def _note_scale(graph: Graph, layer: Node, weight: str) -> None:
    if weight in graph.scales:
        graph.scales[layer.outputs[0]] = graph.scales[weight]
