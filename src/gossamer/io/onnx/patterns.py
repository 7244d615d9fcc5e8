# SPDX-License-Identifier: Apache-2.0
"""Finds what exporters spell out: layer norm, GELU, attention, batch norm behind a convolution."""

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
