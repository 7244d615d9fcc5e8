# SPDX-License-Identifier: Apache-2.0
"""Makes a graph smaller without changing what it computes: constants, copies, equal nodes."""

import torch

from gossamer.errors import ArtifactError, GossamerError
from gossamer.io.onnx.graph import Node, OnnxGraph
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
