# SPDX-License-Identifier: Apache-2.0
"""Products with constant weights as the Linear and Conv2d layers everything else works on."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError
from gossamer.io.onnx.graph import Node, OnnxGraph

Sizes = tuple[int, ...]
# Pads of a convolution that keep the size: their amount depends on the image.
_SAME = ("SAME_UPPER", "SAME_LOWER")


def filled(
    kind: Callable[..., nn.Module], weight: nn.Parameter, bias: torch.Tensor | None, *settings: Any
) -> nn.Module:
    """A layer of a class of torch.nn with these parameters."""
    layer = kind(*settings, bias=bias is not None, device="meta", dtype=weight.dtype)
    layer.weight = weight
    if bias is not None:
        layer.bias = nn.Parameter(bias)
    return layer


@torch.no_grad()
def make_layers(graph: OnnxGraph) -> None:
    """MatMul and Gemm (with the bias behind them) and two-dimensional Conv, as layers."""
    shared: dict[object, nn.Parameter] = {}
    for node in graph.nodes("Gemm", "MatMul"):
        _linear(graph, node, shared)
    for node in graph.nodes("Conv"):
        _conv(graph, node)


def _linear(graph: OnnxGraph, node: Node, shared: dict[object, nn.Parameter]) -> None:
    weight, bias, last = node.inputs[1], node.input(2), node
    values = _weight(graph, node, 2)
    if values is None or node.attributes.get("transA", 0):
        return
    turned = bool(node.attributes.get("transB", 0))
    sizes = values.shape[:1] if turned else values.shape[1:]
    if node.operator == "MatMul":
        # The bias that is added to the product, and the node that makes the sum.
        bias, add = "", graph.sole_user(node.outputs[0])
        if add is not None and add.operator == "Add":
            others = [value for value in add.inputs if value != node.outputs[0]]
            if len(others) == 1 and _has_shape(graph, others[0], sizes):
                bias, last = others[0], add
    elif bias and not _has_shape(graph, bias, sizes):
        return
    alpha, beta = (node.number(name, 1.0) for name in ("alpha", "beta"))
    key = (node.operator, weight, turned, alpha)
    if key not in shared:
        values = values if turned else values.T
        shared[key] = nn.Parameter((values if alpha == 1 else alpha * values).contiguous())
    shift = beta * graph.constants[bias] if bias else None
    layer = filled(nn.Linear, shared[key], shift, *reversed(shared[key].shape))
    graph.put_layer(layer, node.inputs[0], last, weight, bias, name=node.name)


def _weight(graph: OnnxGraph, node: Node, ndim: int) -> torch.Tensor | None:
    """The constant weight of a product, if it has floats and so many dimensions."""
    values = graph.constants.get(node.inputs[1])
    fits = values is not None and values.ndim == ndim and values.is_floating_point()
    return values if fits else None


def _has_shape(graph: OnnxGraph, value: str, shape: torch.Size) -> bool:
    return value in graph.constants and graph.constants[value].shape == shape


def _conv(graph: OnnxGraph, node: Node) -> None:
    bias, values, group = node.input(2), _weight(graph, node, 4), node.attributes.get("group", 1)
    if values is None or (bias and not _has_shape(graph, bias, values.shape[:1])):
        return
    if not isinstance(group, int) or group < 1 or values.shape[0] % group:
        return
    outputs, inputs, *kernel = values.shape
    strides, dilations = (_sizes(node, name, (1, 1)) for name in ("strides", "dilations"))
    source, padding = _padding(graph, node, tuple(kernel), strides, dilations)
    shift = graph.constants[bias].clone() if bias else None
    settings = (inputs * group, outputs, tuple(kernel), strides, padding, dilations, group)
    layer = filled(nn.Conv2d, nn.Parameter(values.contiguous()), shift, *settings)
    graph.put_layer(layer, source, node, node.inputs[1], bias)


def _padding(
    graph: OnnxGraph, node: Node, kernel: Sizes, strides: Sizes, dilations: Sizes
) -> tuple[str, Sizes]:
    """(what the layer reads, padding it does itself); other padding is a step before it."""
    mode = str(node.attributes.get("auto_pad", "NOTSET"))
    pads = _sizes(node, "pads", (0, 0, 0, 0)) if mode == "NOTSET" else (0, 0, 0, 0)
    if mode not in _SAME and pads[:2] == pads[2:]:
        return node.inputs[0], pads[:2]
    new = Node("ZeroPad", node.inputs[:1], [graph.value()], {"pads": pads}, node.name)
    if mode in _SAME:
        new.operator, new.attributes = "AutoPad", {"mode": mode, "kernel": kernel}
        new.attributes |= {"strides": strides, "dilations": dilations}
    graph.add(new)
    return new.outputs[0], (0, 0)


def _sizes(node: Node, name: str, default: Sizes) -> Sizes:
    value = node.attributes.get(name, default)
    if not isinstance(value, tuple) or len(value) != len(default) or min(value) < 0:
        raise ArtifactError(
            f"{node}: the attribute {name!a} must be {len(default)} sizes for a weight of four"
            f" dimensions, got {ascii(value)[:80]}."
        )
    return value
