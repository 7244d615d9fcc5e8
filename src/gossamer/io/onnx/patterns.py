# SPDX-License-Identifier: Apache-2.0
"""Finds what exporters spell out: layer norm, GELU, batch norm behind a convolution."""

import math

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from gossamer.io.onnx.graph import Graph, Node

# fp32 constants in files are rounded, some of them to a few digits.
_CLOSE = 1e-4


def find_layer_norms(graph: Graph) -> None:
    """(x - mean) / sqrt(mean of squares + eps) * gain + shift over the last dimension."""
    for add in graph.nodes("Add"):
        found = _layer_norm(graph, add)
        if found is None:
            continue
        x, gain, shift, epsilon = found
        node = Node("LayerNorm", [x], add.outputs, {}, graph.title(add, gain, shift))
        node.layer = _norm_layer(graph.constants[gain], graph.constants[shift], epsilon)
        graph.remove(add)
        graph.add(node)
    for node in graph.nodes("LayerNormalization"):
        gain, shift = node.inputs[1], node.input(2)
        known = gain in graph.constants and (not shift or shift in graph.constants)
        if known and graph.constants[gain].ndim == 1 and node.attributes.get("axis", -1) == -1:
            bias = graph.constants[shift] if shift else None
            epsilon = node.number("epsilon", 1e-5)
            new = Node(
                "LayerNorm", node.inputs[:1], node.outputs, {}, graph.title(node, gain, shift)
            )
            new.layer = _norm_layer(graph.constants[gain], bias, epsilon)
            graph.remove(node)
            graph.add(new)


def _norm_layer(gain: torch.Tensor, shift: torch.Tensor | None, epsilon: float) -> nn.LayerNorm:
    layer = nn.LayerNorm(
        gain.numel(), epsilon, bias=shift is not None, device="meta", dtype=gain.dtype
    )
    layer.weight = nn.Parameter(gain.clone())
    if shift is not None:
        layer.bias = nn.Parameter(shift.clone())
    return layer


def _layer_norm(graph: Graph, add: Node) -> tuple[str, str, str, float] | None:
    """(input, gain, shift, epsilon) if `add` is the last step of a layer norm."""
    for scaled, shift in (add.inputs, add.inputs[::-1]):
        mul = graph.maker(scaled, "Mul")
        if mul is None or not _is_vector(graph, shift) or graph.sole_user(scaled) is not add:
            continue
        for normed, gain in (mul.inputs, mul.inputs[::-1]):
            inner = _normalised(graph, normed)
            same = _is_vector(graph, gain) and (
                graph.constants[gain].shape == graph.constants[shift].shape
            )
            if inner is not None and same:
                return inner[0], gain, shift, inner[1]
    return None


def _normalised(graph: Graph, value: str) -> tuple[str, float] | None:
    """(x, epsilon) if `value` is x without its mean over its deviation."""
    div = graph.maker(value, "Div")
    root = None if div is None else graph.maker(div.inputs[1], "Sqrt")
    total = None if root is None else graph.maker(root.inputs[0], "Add")
    if div is None or total is None:
        return None
    for square, eps in (total.inputs, total.inputs[::-1]):
        epsilon, mean = graph.scalar(eps), graph.maker(square, "ReduceMean")
        if epsilon is None or mean is None or not _over_last(graph, mean):
            continue
        if _squared(graph, mean.inputs[0]) != div.inputs[0]:
            continue
        sub = graph.maker(div.inputs[0], "Sub")
        centre = None if sub is None else graph.maker(sub.inputs[1], "ReduceMean")
        if sub and centre and centre.inputs[0] == sub.inputs[0] and _over_last(graph, centre):
            return sub.inputs[0], float(f"{epsilon:.7g}")
    return None


def _squared(graph: Graph, value: str) -> str | None:
    power = graph.maker(value, "Pow")
    if power is not None and graph.scalar(power.inputs[1]) == 2:
        return power.inputs[0]
    product = graph.maker(value, "Mul")
    if product is not None and product.inputs[0] == product.inputs[1]:
        return product.inputs[0]
    return None


def _over_last(graph: Graph, mean: Node) -> bool:
    axes = mean.attributes.get("axes")
    given = graph.constants.get(mean.input(1))
    axes = tuple(given.tolist()) if given is not None else axes
    return axes == (-1,) and mean.attributes.get("keepdims", 1) == 1


def _is_vector(graph: Graph, value: str) -> bool:
    return value in graph.constants and graph.constants[value].ndim == 1


def find_gelus(graph: Graph) -> None:
    """X / 2 * (1 + erf(x / sqrt 2)), in whatever order it is multiplied."""
    for erf in graph.nodes("Erf"):
        x = _scaled(graph, erf.inputs[0], math.sqrt(0.5))
        one = graph.sole_user(erf.outputs[0])
        if x is None or one is None or one.operator != "Add":
            continue
        if not any(_close(graph.scalar(value), 1.0) for value in one.inputs):
            continue
        last = _product_of(graph, one.outputs[0], x)
        if last is not None:
            _put_gelu(graph, last, x, "none")
    for node in graph.nodes("Gelu"):
        approximate = str(node.attributes.get("approximate", "none"))
        if approximate in ("none", "tanh"):
            _put_gelu(graph, node, node.inputs[0], approximate)


def _put_gelu(graph: Graph, last: Node, x: str, approximate: str) -> None:
    new = Node("GELU", [x], last.outputs, {}, last.name, nn.GELU(approximate))
    graph.remove(last)
    graph.add(new)


def _scaled(graph: Graph, value: str, factor: float) -> str | None:
    """X if `value` is x times `factor`."""
    node = graph.maker(value, "Mul", "Div")
    if node is None:
        return None
    number = graph.scalar(node.inputs[1])
    if node.operator == "Div":
        return node.inputs[0] if number and _close(1 / number, factor) else None
    if _close(number, factor):
        return node.inputs[0]
    return node.inputs[1] if _close(graph.scalar(node.inputs[0]), factor) else None


def _product_of(graph: Graph, value: str, x: str) -> Node | None:
    """The node that makes x * value / 2 from `value`."""
    node = graph.sole_user(value)
    if node is None or node.operator != "Mul":
        return None
    factors = _factors(graph, node)
    if sorted(factors) != sorted([x, value]) and _halved(graph, factors, x, value) is None:
        following = graph.sole_user(node.outputs[0])
        return None if following is None else _half_of(graph, following, [x, value])
    if _halved(graph, factors, x, value) is not None:
        return node
    following = graph.sole_user(node.outputs[0])
    return None if following is None else _half_of(graph, following, [x, value])


def _half_of(graph: Graph, node: Node, wanted: list[str]) -> Node | None:
    if node.operator not in ("Mul", "Div"):
        return None
    return node if _halved(graph, _factors(graph, node), *wanted) is not None else None


def _halved(graph: Graph, factors: list[str], x: str, value: str) -> str | None:
    """The constant one half, if `factors` are x, value and it."""
    rest = list(factors)
    for name in (x, value):
        if name not in rest:
            return None
        rest.remove(name)
    return rest[0] if len(rest) == 1 and _close(graph.scalar(rest[0]), 0.5) else None


def _factors(graph: Graph, node: Node) -> list[str]:
    """What a product of products is made of, two levels deep."""
    found: list[str] = []
    for value in node.inputs:
        inner = graph.maker(value, "Mul")
        found += inner.inputs if inner is not None else [value]
    return found


def _close(number: float | None, wanted: float) -> bool:
    return number is not None and math.isclose(number, wanted, rel_tol=_CLOSE)


@torch.no_grad()
def fold_batch_norms(graph: Graph) -> None:
    """A BatchNormalization behind a convolution becomes part of its weight and bias."""
    for norm in graph.nodes("BatchNormalization"):
        conv = graph.maker(norm.inputs[0], "Conv")
        if conv is None or graph.sole_user(norm.inputs[0]) is not norm:
            continue
        given = [*norm.inputs[1:5], *conv.inputs[1:]]
        if not all(value in graph.constants for value in given):
            continue
        gain, shift, mean, variance, weight = (graph.constants[value] for value in given[:5])
        if any(t.shape != (weight.shape[0],) for t in (gain, shift, mean, variance)):
            continue
        bias = graph.constants[conv.inputs[2]] if conv.input(2) else None
        epsilon = norm.number("epsilon", 1e-5)
        folded = fuse_conv_bn_weights(weight, bias, mean, variance, epsilon, gain, shift)
        names = [
            graph.constant(tensor.detach(), like)
            for tensor, like in zip(folded, (conv.inputs[1], conv.input(2)), strict=True)
        ]
        new = Node("Conv", [conv.inputs[0], *names], norm.outputs, conv.attributes, conv.name)
        graph.remove(conv, norm)
        graph.add(new)
