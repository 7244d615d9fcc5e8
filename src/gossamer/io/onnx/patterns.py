# SPDX-License-Identifier: Apache-2.0
"""Finds what exporters spell out: layer norm, GELU, attention, batch norm behind a convolution.

Quantised graphs run in fp32: weights become the values they stand for, activations are rounded.
What comes out computes what the file says, up to ties of rounding. Three spellings are known: pairs
of QuantizeLinear and DequantizeLinear, QLinearMatMul and QLinearConv (written as such pairs when a
file is read), and MatMulInteger or ConvInteger with a scale multiplied in afterwards.
"""

import math
from functools import partial

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from gossamer.io.onnx.graph import Node, OnnxGraph
from gossamer.io.onnx.layers import filled
from gossamer.io.onnx.matching import constant, either, find, made, number, scalar


def _over_last(graph: OnnxGraph, mean: Node) -> bool:
    given = graph.constants.get(mean.input(1))
    axes = mean.attributes.get("axes") if given is None else tuple(given.tolist())
    return axes == (-1,) and mean.attributes.get("keepdims", 1) == 1


_mean = partial(made, "ReduceMean", where=_over_last)
_sum = partial(made, "Add", swaps=True)
_product = partial(made, "Mul", swaps=True)
_vector = partial(constant, fits=lambda tensor: tensor.ndim == 1)
_CENTRED = made("Sub", "x", _mean("x"), name="centred")
_SQUARE = either(made("Pow", "centred", number(2, 0)), made("Mul", "centred", "centred"))
_DEVIATION = made("Sqrt", _sum(_mean(_SQUARE), scalar("epsilon")))
_NORMALISED = made("Div", _CENTRED, _DEVIATION)
_LAYER_NORM = _sum(_product(_NORMALISED, _vector("gain"), alone=True), _vector("shift"))


def find_layer_norms(graph: OnnxGraph) -> None:
    """(x - mean) / sqrt(mean of squares + eps) * gain + shift over the last dimension."""
    for add, found in find(graph, "Add", _LAYER_NORM):
        gain, shift = found["gain"], found["shift"]
        if graph.constants[gain].shape == graph.constants[shift].shape:
            epsilon = float(f"{graph.scalar(found['epsilon']):.7g}")
            _put_norm(graph, add, found["x"], (gain, shift), epsilon)
    for node in graph.nodes("LayerNormalization"):
        gain, shift = node.inputs[1], node.input(2)
        known = gain in graph.constants and (not shift or shift in graph.constants)
        if known and graph.constants[gain].ndim == 1 and node.attributes.get("axis", -1) == -1:
            _put_norm(graph, node, node.inputs[0], (gain, shift), node.number("epsilon", 1e-5))


def _put_norm(
    graph: OnnxGraph, last: Node, x: str, parameters: tuple[str, str], epsilon: float
) -> None:
    gain, shift = parameters
    weight = nn.Parameter(graph.constants[gain].clone())
    bias = graph.constants[shift].clone() if shift else None
    layer = filled(nn.LayerNorm, weight, bias, weight.numel(), epsilon)
    graph.put_layer(layer, x, last, gain, shift)


_X_OVER_ROOT = either(_product("x", number(math.sqrt(0.5))), made("Div", "x", number(math.sqrt(2))))
_ONE_AND_ERF = _sum(made("Erf", _X_OVER_ROOT, alone=True), number(1), alone=True)
_HALF = number(0.5)
_GELU = either(
    _product(_product("x", _ONE_AND_ERF, alone=True), _HALF),
    _product(_product("x", _HALF), _ONE_AND_ERF),
    _product("x", _product(_HALF, _ONE_AND_ERF, alone=True)),
)


def find_gelus(graph: OnnxGraph) -> None:
    """X / 2 * (1 + erf(x / sqrt 2)), in whatever order it is multiplied."""
    for last, found in find(graph, "Mul", _GELU):
        graph.put_layer(nn.GELU(), found["x"], last)
    for node in graph.nodes("Gelu"):
        approximate = str(node.attributes.get("approximate", "none"))
        if approximate in ("none", "tanh"):
            graph.put_layer(nn.GELU(approximate), node.inputs[0], node)


_RAW_SCORES = made("MatMul", "query", "keys", alone=True)
_SCALED = either(
    made("Mul", _RAW_SCORES, scalar("factor"), alone=True),
    made("Div", _RAW_SCORES, scalar("divisor"), alone=True),
    _RAW_SCORES,
)
_SCORES = either(_sum(_SCALED, "bias", alone=True), _SCALED)
_SHARES = made("Softmax FlatSoftmax", _SCORES, name="shares", alone=True)
_ATTENTION = made("MatMul", _SHARES, "value")


def find_attention(graph: OnnxGraph) -> None:
    """MatMul, scale, bias, Softmax over the last dimension and MatMul, as one step.

    Scores are then never written to memory.
    """
    for last, found in find(graph, "MatMul", _ATTENTION):
        inputs = [found[name] for name in ("query", "keys", "value")]
        factor, divisor = (graph.scalar(found.get(name, "")) for name in ("factor", "divisor"))
        is_fixed = factor == 0 or divisor == 0 or any(v in graph.constants for v in inputs)
        # The softmax must be over the last dimension; the rank is known from a transposition.
        softmax, turned = graph.producer[found["shares"]], graph.maker(inputs[0], "Transpose")
        axis = softmax.number("axis", -1 if softmax.operator == "Softmax" else 1)
        perm = turned and turned.attributes.get("perm")
        if is_fixed or axis not in (-1, 3) or not isinstance(perm, tuple) or len(perm) != 4:
            continue
        scale = 1 / divisor if divisor else 1.0 if factor is None else factor
        inputs += [found["bias"]] if "bias" in found else []
        new = Node("ScaledAttention", inputs, last.outputs, {"scale": scale}, last.name)
        graph.replace(last, new)


@torch.no_grad()
def fold_batch_norms(graph: OnnxGraph) -> None:
    """A BatchNormalization behind a convolution becomes part of its weight and bias."""
    pattern = made("BatchNormalization", made("Conv", alone=True))
    for norm, _ in find(graph, "BatchNormalization", pattern):
        conv = graph.producer[norm.inputs[0]]
        given = [*norm.inputs[1:5], *conv.inputs[1:]]
        if not all(value in graph.constants for value in given):
            continue
        gain, shift, mean, variance, weight = (graph.constants[value] for value in given[:5])
        if any(t.shape != weight.shape[:1] for t in (gain, shift, mean, variance)):
            continue
        bias, epsilon = graph.constants.get(conv.input(2)), norm.number("epsilon", 1e-5)
        folded = fuse_conv_bn_weights(weight, bias, mean, variance, epsilon, gain, shift)
        likes = (conv.inputs[1], conv.input(2))
        names = [graph.constant(t.detach(), like) for t, like in zip(folded, likes, strict=True)]
        new = Node("Conv", [conv.inputs[0], *names], norm.outputs, conv.attributes, conv.name)
        graph.remove(conv)
        graph.replace(norm, new)


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
