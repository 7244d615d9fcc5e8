# SPDX-License-Identifier: Apache-2.0
"""Quantised graphs in fp32: weights become the values they stand for, activations are rounded.

What comes out computes what the file says, up to ties of rounding. Three spellings are known: pairs
of QuantizeLinear and DequantizeLinear, QLinearMatMul and QLinearConv (written as such pairs when a
file is read), and MatMulInteger or ConvInteger with a scale multiplied in afterwards.
"""

import torch

from gossamer.io.onnx.graph import Graph, Node

_FLOAT = 1  # TensorProto.FLOAT
_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


@torch.no_grad()
def find_integer_products(graph: Graph) -> None:
    """Cast(integer product [+ integer bias]) * scale, as a product of floats."""
    for node in graph.nodes(*_PRODUCTS):
        weight = graph.constants.get(node.inputs[1])
        cast, bias = _to_float(graph, node)
        last = None if cast is None else graph.sole_user(cast.outputs[0])
        if weight is None or cast is None or last is None or last.operator != "Mul":
            continue
        others = [value for value in last.inputs if value != cast.outputs[0]]
        source = graph.maker(node.inputs[0], "QuantizeLinear", "DynamicQuantizeLinear")
        found = None
        if len(others) == 1 and source is not None and (not bias or others[0] in graph.constants):
            found = _weight_scale(graph, source, others[0], node.input(2))
        if found is None:
            continue
        x_scale, w_scale = found
        zero = node.input(3)
        if zero and (zero not in graph.constants or graph.constants[zero].numel() != 1):
            continue
        shift = float(graph.constants[zero]) if zero else 0.0
        sizes = _along_outputs(node, weight, w_scale)
        if sizes is None:
            continue
        real = (weight.to(torch.float32) - shift) * sizes
        name = graph.constant(real, node.inputs[1])
        graph.scales[name] = w_scale
        image, product = graph.value(), last.outputs[0]
        inputs = [image, name]
        new = []
        if bias:
            real_bias = graph.constants[bias].float() * graph.constants[others[0]]
            if node.operator == "ConvInteger":
                inputs.append(graph.constant(real_bias.reshape(-1), bias))
            else:
                product = graph.value()
                added = [product, graph.constant(real_bias, bias)]
                new.append(Node("Add", added, last.outputs, {}, node.name))
        codes = [node.inputs[0], x_scale, node.input(2)]
        new.append(Node("DequantizeLinear", codes, [image], {}, node.name))
        new.append(Node(_PRODUCTS[node.operator], inputs, [product], node.attributes, node.name))
        graph.remove(last)
        graph.add(*new)


def _to_float(graph: Graph, node: Node) -> tuple[Node | None, str]:
    """The Cast behind an integer product, and the constant that is added on the way."""
    bias = ""
    following = graph.sole_user(node.outputs[0])
    if following is not None and following.operator == "Add":
        added = [value for value in following.inputs if value != node.outputs[0]]
        if len(added) != 1 or added[0] not in graph.constants:
            return None, ""
        bias, following = added[0], graph.sole_user(following.outputs[0])
    if following is None or following.operator != "Cast" or following.attributes["to"] != _FLOAT:
        return None, ""
    return following, bias


def _weight_scale(
    graph: Graph, source: Node, factor: str, zero: str
) -> tuple[str, torch.Tensor] | None:
    """(name of the scale of the activation, scale of the weight); their product is `factor`."""
    if source.operator == "DynamicQuantizeLinear":
        product = graph.maker(factor, "Mul")
        if product is None or zero != source.outputs[2]:
            return None
        scales = [value for value in product.inputs if value != source.outputs[1]]
        known = len(scales) == 1 and scales[0] in graph.constants
        return (source.outputs[1], graph.constants[scales[0]]) if known else None
    x_scale = graph.scalar(source.inputs[1])
    if x_scale is None or factor not in graph.constants or zero != source.input(2):
        return None
    return source.inputs[1], graph.constants[factor] / x_scale


def _along_outputs(node: Node, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor | None:
    """A scale per output of a weight, shaped to be multiplied with it."""
    if scale.numel() == 1:
        return scale.reshape(())
    axis = 0 if node.operator == "ConvInteger" else weight.ndim - 1
    if scale.numel() != weight.shape[axis]:
        return None
    sizes = [1] * weight.ndim
    sizes[axis] = -1
    return scale.reshape(sizes)


def join_pairs(graph: Graph, *, rounding: bool) -> None:
    """QuantizeLinear and DequantizeLinear of the same scale in one step.

    Args:
        graph: changed in place.
        rounding: False keeps the range of the codes but not their steps.
    """
    for node in graph.nodes("DequantizeLinear"):
        source = graph.maker(node.inputs[0], "QuantizeLinear", "DynamicQuantizeLinear")
        if source is None:
            continue
        if source.operator == "DynamicQuantizeLinear":
            if node.inputs[1:] != source.outputs[1:]:
                continue
            graph.remove(node)
            if rounding:
                graph.add(
                    Node(
                        "DynamicQuantizeDequantize", source.inputs[:1], node.outputs, {}, node.name
                    )
                )
            else:
                graph.alias(node.outputs[0], source.inputs[0])
        elif all(_same(graph, node.input(i), source.input(i)) for i in (1, 2)):
            axis = source.attributes.get("axis", 1)
            if axis == node.attributes.get("axis", 1) or graph.scalar(node.inputs[1]) is not None:
                graph.remove(node)
                attributes = {"axis": axis, "rounding": int(rounding)}
                pair = "QuantizeDequantize"
                graph.add(Node(pair, list(source.inputs), node.outputs, attributes, node.name))


def _same(graph: Graph, first: str, second: str) -> bool:
    if first == second:
        return True
    one, other = graph.constants.get(first), graph.constants.get(second)
    return one is not None and other is not None and torch.equal(one, other)
