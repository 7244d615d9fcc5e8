# SPDX-License-Identifier: Apache-2.0
"""Encoders and CNNs in ONNX files as torch modules whose layers can be pruned and compiled.

A graph becomes smaller without changing what it computes: constants, copies, equal nodes. Layers
and constants get names that people can read and torch accepts.
"""

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from gossamer.errors import ArtifactError, GossamerError, InputError
from gossamer.io.onnx.file import read_onnx
from gossamer.io.onnx.graph import Node, OnnxGraph
from gossamer.io.onnx.layers import make_layers
from gossamer.io.onnx.patterns import (
    find_attention,
    find_gelus,
    find_integer_products,
    find_layer_norms,
    fold_batch_norms,
    join_pairs,
)
from gossamer.nn.operator_graph import GraphModule, OperatorPlan, Step, StoredScales
from gossamer.nn.operator_graph.operators import OPERATORS, largest_result

# Elements that may be made of constants beyond what the file holds: masks and position tables.
_BUDGET = 2**24
_KEEP_NAME = [
    "Cast",
    "DequantizeLinear",
    "Identity",
    "Reshape",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
]


def simplify(graph: OnnxGraph) -> None:
    """Drop copies, fold constants, compute equal nodes once."""
    for node in graph.nodes("Identity", "Dropout"):
        if len(node.inputs) < 3:
            graph.remove(node)
            graph.alias(node.outputs[0], node.inputs[0])
    _fold_constants(graph)
    _merge_equal(graph)


@torch.no_grad()
def _fold_constants(graph: OnnxGraph) -> None:
    left = _BUDGET + 4 * sum(tensor.numel() for tensor in graph.constants.values())
    for node in graph.nodes():
        if node.layer is not None or not all(v in graph.constants for v in node.inputs if v):
            continue
        given = [graph.constants.get(value) for value in node.inputs]
        try:
            tensors = [tensor for tensor in given if tensor is not None]
            size = largest_result(node.operator, tensors, node.number("axis", 0))
            if size is None or size > left:
                continue
            made = OPERATORS[node.operator].function(*given, **node.attributes)
        except (GossamerError, RuntimeError, IndexError, TypeError, ValueError) as error:
            raise ArtifactError(
                f"{graph.where}: {node} cannot be computed from its constants: {error}"
            ) from error
        left -= size
        results = [made] if isinstance(made, torch.Tensor) else list(made)
        graph.remove(node)
        graph.constants |= zip(node.outputs, results, strict=False)
        if node.operator in _KEEP_NAME:
            (value, *_), (source, *others) = node.outputs, node.inputs
            graph.origins[value] = graph.origins.get(source, source)
            if node.operator == "DequantizeLinear":
                graph.scales[value] = graph.constants[others[0]]
            elif source in graph.scales:
                graph.scales[value] = graph.scales[source]


def _merge_equal(graph: OnnxGraph) -> None:
    """One node for all that compute the same from the same values."""
    seen: dict[object, Node] = {}
    for node in graph.nodes():
        key = (node.operator, tuple(node.inputs), tuple(sorted(node.attributes.items())))
        first = seen.setdefault(key, node)
        if first is not node and len(first.outputs) == len(node.outputs):
            graph.remove(node)
            for mine, other in zip(node.outputs, first.outputs, strict=True):
                graph.alias(mine, other)


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


_PARAMETER = re.compile(r"^(?P<layer>.+?)\.(?P<name>weight|bias|gamma|beta)(?:_[a-z0-9_]+)?$")
# What exporters call values that had no name: they say nothing.
_NAMELESS = re.compile(r"^(?:onnx::.*|val_\d+|_?\d+|.*_output_\d+|'.*|)$")
_MAX_KEY = 100
_MAX_PATH = 200


def layer_paths(candidates: Sequence[str]) -> list[str]:
    """One path per layer, all different and none inside of another.

    Args:
        candidates: per layer, what it might be called, best first, one per line: names of
            parameters, then the name of the node.
    """
    wanted = [_path(lines.split("\n")) for lines in candidates]
    inner = {path[: dot.start()] for path in wanted for dot in re.finditer(r"\.", path)}
    taken = set(inner)
    # A name that is the folder of another layer moves into that folder.
    return [_free(f"{path}.layer" if path in inner else path, path, taken) for path in wanted]


def constant_keys(names: Sequence[str]) -> list[str]:
    """One attribute name per constant, all different."""
    taken: set[str] = set()
    bases = ["value" if _NAMELESS.match(name) else _key(name) for name in names]
    return [_free(base, base, taken) for base in bases]


def _free(name: str, base: str, taken: set[str]) -> str:
    """`name`, or `base` with the first number that nobody has taken; it is taken from then on."""
    number = 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    taken.add(name)
    return name


def _path(lines: list[str]) -> str:
    *parameters, node = lines
    for name in parameters:
        found = _PARAMETER.match(name)
        if found is not None and not _NAMELESS.match(name):
            return _clean(found["layer"].split("."))
    parts = [part for part in re.split(r"[/.]", node) if part]
    # The last part of a node's name is its operator: /encoder/query/MatMul.
    if node.startswith("/") and len(parts) > 1:
        parts.pop()
    return _clean(parts)


def _clean(parts: list[str]) -> str:
    keys = [_key(part) for part in parts] or ["layer"]
    if keys[0] == GraphModule.CONSTANTS:
        keys[0] += "_"
    path = ".".join(keys)
    return path if len(path) <= _MAX_PATH else keys[-1]


def _key(part: str) -> str:
    key = re.sub(r"[^A-Za-z0-9_]+", "_", part)[:_MAX_KEY].strip("_") or "layer"
    return f"{key}_" if hasattr(nn.Module, key) or key == "training" else key
