# SPDX-License-Identifier: Apache-2.0
"""Quantised graphs in fp32: weights become the values they stand for, activations are rounded.

What comes out computes what the file says, up to ties of rounding. Three spellings are known: pairs
of QuantizeLinear and DequantizeLinear, QLinearMatMul and QLinearConv (written as such pairs when a
file is read), and MatMulInteger or ConvInteger with a scale multiplied in afterwards.
"""

import torch

from gossamer.io.onnx.graph import Node, OnnxGraph
from gossamer.io.onnx.matching import constant, either, find, made

_FLOAT = 1  # TensorProto.FLOAT
_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
_PRODUCT = made(" ".join(_PRODUCTS), "codes", constant("weight"), name="product", alone=True)
_SUM = made("Add", _PRODUCT, constant("bias"), alone=True, swaps=True)
_CAST = made(
    "Cast",
    either(_SUM, _PRODUCT),
    alone=True,
    where=lambda graph, node: node.attributes["to"] == _FLOAT,
)
_SCALED_PRODUCT = made("Mul", _CAST, "factor", swaps=True)


@torch.no_grad()
def find_integer_products(graph: OnnxGraph) -> None:
    """Cast(integer product [+ integer bias]) * scale, as a product of floats."""
    for last, found in find(graph, "Mul", _SCALED_PRODUCT):
        node, weight = graph.producer[found["product"]], graph.constants[found["weight"]]
        bias, factor, zero = found.get("bias", ""), found["factor"], node.input(3)
        scales = _scales(graph, node, factor)
        shift = graph.scalar(zero) if zero else 0.0
        if scales is None or shift is None or (bias and factor not in graph.constants):
            continue
        x_scale, w_scale = scales
        sizes = _along_outputs(node, weight, w_scale)
        if sizes is None:
            continue
        name = graph.constant((weight.float() - shift) * sizes, found["weight"])
        graph.scales[name] = w_scale
        image, product = graph.value(), last.outputs[0]
        inputs, new = [image, name], []
        if bias:
            real_bias = graph.constants[bias].float() * graph.constants[factor]
            if node.operator == "ConvInteger":
                inputs.append(graph.constant(real_bias.reshape(-1), bias))
            else:
                product = graph.value()
                added = [product, graph.constant(real_bias, bias)]
                new.append(Node("Add", added, last.outputs, name=node.name))
        codes = [node.inputs[0], x_scale, node.input(2)]
        new.append(Node("DequantizeLinear", codes, [image], name=node.name))
        new.append(Node(_PRODUCTS[node.operator], inputs, [product], node.attributes, node.name))
        graph.replace(last, *new)


def _scales(graph: OnnxGraph, node: Node, factor: str) -> tuple[str, torch.Tensor] | None:
    """(name of the scale of the activation, scale of the weight); their product is `factor`."""
    source = graph.maker(node.inputs[0], "QuantizeLinear", "DynamicQuantizeLinear")
    zero = node.input(2)
    if source is None:
        return None
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
    return scale.reshape([-1 if place == axis else 1 for place in range(weight.ndim)])


def join_pairs(graph: OnnxGraph, *, rounding: bool) -> None:
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
            pair = Node("DynamicQuantizeDequantize", source.inputs[:1], node.outputs, {}, node.name)
            if rounding:
                graph.replace(node, pair)
            else:
                graph.remove(node)
                graph.alias(node.outputs[0], source.inputs[0])
        elif all(_same(graph, node.input(i), source.input(i)) for i in (1, 2)):
            axis = source.attributes.get("axis", 1)
            if axis == node.attributes.get("axis", 1) or graph.scalar(node.inputs[1]) is not None:
                settings, inputs = {"axis": axis, "rounding": int(rounding)}, [*source.inputs]
                new = Node("QuantizeDequantize", inputs, node.outputs, settings, node.name)
                graph.replace(node, new)


def _same(graph: OnnxGraph, first: str, second: str) -> bool:
    one, other = graph.constants.get(first), graph.constants.get(second)
    equal = one is not None and other is not None and torch.equal(one, other)
    return first == second or equal
