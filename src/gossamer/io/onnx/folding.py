# SPDX-License-Identifier: Apache-2.0
"""Makes a graph smaller without changing what it computes: constants, copies, equal nodes."""

import math

import torch

from gossamer.errors import ArtifactError, GossamerError
from gossamer.io.onnx.graph import Graph, Node
from gossamer.nn.operator_graph import OPERATORS
from gossamer.nn.operator_graph.elementwise import BROADCASTING, UNARY
from gossamer.nn.operator_graph.shaping import broadcast

# Elements that may be made of constants beyond what the file holds: masks and position tables.
_BUDGET = 2**24
# Operators whose results are no larger than their largest input.
_NEVER_LARGER = {
    *UNARY, "DequantizeLinear", "QuantizeLinear", "Flatten", "Reshape", "Shape", "Size", "Slice",
    "Split", "Squeeze", "Transpose", "Trilu", "Unsqueeze", "CumSum", "ArgMax", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Softmax",
}  # fmt: skip
_KEEP_NAME = {
    "Cast",
    "DequantizeLinear",
    "Identity",
    "Reshape",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
}


def simplify(graph: Graph) -> None:
    """Fold constants, drop copies, compute equal nodes once."""
    _drop_copies(graph)
    _fold_constants(graph)
    _merge_equal(graph)


def _drop_copies(graph: Graph) -> None:
    for node in graph.nodes("Identity", "Dropout"):
        if len(node.inputs) < 3:
            graph.remove(node)
            graph.alias(node.outputs[0], node.inputs[0])


@torch.no_grad()
def _fold_constants(graph: Graph) -> None:
    left = _BUDGET + 4 * sum(tensor.numel() for tensor in graph.constants.values())
    for node in graph.nodes():
        if node.layer is not None or not all(v in graph.constants for v in node.inputs if v):
            continue
        given = [graph.constants[value] if value else None for value in node.inputs]
        try:
            size = _largest_result(node, [t for t in given if t is not None])
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
        for value, tensor in zip(node.outputs, results, strict=False):
            graph.constants[value] = tensor
            if node.operator in _KEEP_NAME:
                _keep_origin(graph, node, value)


def _keep_origin(graph: Graph, node: Node, value: str) -> None:
    source = node.inputs[0]
    graph.origins[value] = graph.origins.get(source, source)
    if node.operator == "DequantizeLinear":
        graph.scales[value] = graph.constants[node.inputs[1]]
    elif source in graph.scales:
        graph.scales[value] = graph.scales[source]


def _largest_result(node: Node, given: list[torch.Tensor]) -> int | None:
    """A bound of the elements of a result, None where nobody can tell."""
    total = sum(tensor.numel() for tensor in given)
    if node.operator in _NEVER_LARGER or node.operator == "Concat":
        return total
    if node.operator in BROADCASTING:
        return math.prod(broadcast(*(tensor.shape for tensor in given)))
    if node.operator == "ConstantOfShape":
        return abs(math.prod(int(size) for size in given[0].tolist()))
    if node.operator == "Expand":
        return abs(math.prod(broadcast(given[0].shape, given[1].tolist())))
    if node.operator == "Gather":
        axis = node.whole("axis", 0)
        return given[0].numel() // max(1, given[0].shape[axis]) * given[1].numel()
    if node.operator == "Range":
        first, last, step = (float(tensor) for tensor in given)
        return math.ceil(abs((last - first) / step)) if step else 0
    # Products of matrices and the like: small ones only.
    return total * total if total <= 4096 else None


def _merge_equal(graph: Graph) -> None:
    """One node for all that compute the same from the same values."""
    seen: dict[object, Node] = {}
    for node in graph.nodes():
        key = (node.operator, tuple(node.inputs), tuple(sorted(node.attributes.items())))
        first = seen.setdefault(key, node)
        if first is not node and len(first.outputs) == len(node.outputs):
            graph.remove(node)
            for mine, other in zip(node.outputs, first.outputs, strict=True):
                graph.alias(mine, other)
