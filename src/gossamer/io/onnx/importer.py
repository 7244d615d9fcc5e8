# SPDX-License-Identifier: Apache-2.0
"""Encoders and CNNs in ONNX files as torch modules whose layers can be pruned and compiled."""

import os
from functools import partial
from pathlib import Path

from gossamer.errors import ArtifactError, InputError
from gossamer.io.onnx.file import read_onnx
from gossamer.io.onnx.folding import simplify
from gossamer.io.onnx.graph import Node, OnnxGraph
from gossamer.io.onnx.layers import make_layers
from gossamer.io.onnx.names import constant_keys, layer_paths
from gossamer.io.onnx.patterns import find_attention, find_gelus, find_layer_norms, fold_batch_norms
from gossamer.io.onnx.quantised import find_integer_products, join_pairs
from gossamer.nn.operator_graph import GraphModule, OperatorPlan, Step, StoredScales


def load_onnx(
    path: os.PathLike[str] | str, *, activation_rounding: bool = True, max_bytes: int | None = None
) -> GraphModule:
    """The model in an ONNX file (opsets 11 to 23), in eval mode.

    Products with constant weights are `nn.Linear` and `nn.Conv2d` layers under the names of their
    weights, with the zeros of the file; batch norms behind convolutions are folded in; layer norms
    and GELUs that were spelt out are layers again. Quantised weights are dequantised.

    Args:
        path: the file. External data must lie in its folder.
        activation_rounding: quantised activations are rounded as the file says. False keeps only
            their range, which is faster, and what `compile(precision="int8")` wants.
        max_bytes: refuse models that need more memory; default: what is available.

    Raises:
        ArtifactError: damaged, hostile, or with an operator that is not supported, which is named.
        InputError: the package onnx is missing.
        ResourceError: needs more memory than `max_bytes`.
    """
    graph = read_onnx(Path(path), max_bytes)
    for rewrite in (
        simplify,
        find_integer_products,
        partial(join_pairs, rounding=activation_rounding),
        simplify,
        find_layer_norms,
        find_gelus,
        find_attention,
        fold_batch_norms,
        make_layers,
    ):
        try:
            rewrite(graph)
        except InputError as error:
            raise ArtifactError(f"{graph.where}: {error}") from error
        graph.drop_dead()
    return _build(graph)


def _build(graph: OnnxGraph) -> GraphModule:
    nodes = graph.nodes()
    layered = [node for node in nodes if node.layer is not None]
    path_of = dict(zip(layered, layer_paths([node.name for node in layered]), strict=True))
    used = {value for node in nodes for value in node.inputs} | {v for _, v in graph.outputs}
    constants = [name for name in graph.constants if name in used]
    keys = constant_keys([graph.origins.get(name, name) for name in constants])
    numbers = {"": Step.ABSENT}
    for value in [*(entry.name for entry in graph.inputs), *constants]:
        numbers[value] = len(numbers) - 1
    steps = []
    for node in nodes:
        for value in node.outputs:
            numbers[value or f"unused {len(numbers)}"] = len(numbers) - 1
        inputs, outputs = (
            tuple(numbers[value] for value in values) for values in (node.inputs, node.outputs)
        )
        origin = node.name.split("\n")[-1][:200]
        steps.append(
            Step(node.operator, inputs, outputs, node.attributes, path_of.get(node), origin)
        )
    results = tuple((name, numbers[value]) for name, value in graph.outputs)
    plan = OperatorPlan(graph.inputs, tuple(keys), tuple(steps), results)
    layers = {path: node.layer for node, path in path_of.items() if node.layer is not None}
    tensors = {k: graph.constants[v].contiguous() for k, v in zip(keys, constants, strict=True)}
    model = GraphModule(plan, layers, tensors, graph.where)
    model.stored_scales = _scales(graph, path_of)
    return model.eval()


def _scales(graph: OnnxGraph, path_of: dict[Node, str]) -> dict[str, StoredScales]:
    found = {}
    for node in graph.nodes("Linear", "Conv2d"):
        weight = graph.scales.get(node.outputs[0])
        if weight is None:
            continue
        pair = graph.maker(node.inputs[0], "QuantizeDequantize")
        scale = None if pair is None else graph.scalar(pair.inputs[1])
        zero = None if pair is None or scale is None else graph.scalar(pair.input(2))
        zero = None if zero is None else int(zero)
        found[path_of[node]] = StoredScales(weight.reshape(-1), scale, zero)
    return found
