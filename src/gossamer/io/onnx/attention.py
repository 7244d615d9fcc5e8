# SPDX-License-Identifier: Apache-2.0
"""Finds attention that exporters spell out, so that scores are never written to memory."""

from gossamer.io.onnx.graph import Graph, Node


def find_attention(graph: Graph) -> None:
    """MatMul, scale, bias, Softmax over the last dimension and MatMul, as one step."""
    for last in graph.nodes("MatMul"):
        softmax = graph.maker(last.inputs[0], "Softmax", "FlatSoftmax")
        if softmax is None or graph.sole_user(last.inputs[0]) is not last:
            continue
        found = _scores(graph, softmax)
        if found is None:
            continue
        product, scale, bias = found
        if not _is_last(graph, softmax, product) or last.inputs[1] in graph.constants:
            continue
        inputs = [*product.inputs, last.inputs[1], *([bias] if bias else [])]
        graph.remove(last)
        graph.add(Node("ScaledAttention", inputs, last.outputs, {"scale": scale}, last.name))


def _scores(graph: Graph, softmax: Node) -> tuple[Node, float, str] | None:
    """(product of queries and keys, its scale, what is added to it) in front of a softmax."""
    value, bias = softmax.inputs[0], ""
    add = graph.maker(value, "Add")
    if add is not None:
        if graph.sole_user(value) is not softmax:
            return None
        for scores, other in (add.inputs, add.inputs[::-1]):
            found = _scaled_product(graph, scores, add)
            if found is not None:
                bias = other
                return found[0], found[1], bias
        return None
    found = _scaled_product(graph, value, softmax)
    return None if found is None else (found[0], found[1], bias)


def _scaled_product(graph: Graph, value: str, user: Node) -> tuple[Node, float] | None:
    if graph.sole_user(value) is not user:
        return None
    scale = 1.0
    node = graph.maker(value, "Div", "Mul")
    if node is not None:
        number = graph.scalar(node.inputs[1])
        if number is None or number == 0:
            return None
        scale = 1 / number if node.operator == "Div" else number
        if graph.sole_user(node.inputs[0]) is not node:
            return None
        value = node.inputs[0]
    product = graph.maker(value, "MatMul")
    both = product is not None and not any(v in graph.constants for v in product.inputs)
    return (product, scale) if product is not None and both else None


def _is_last(graph: Graph, softmax: Node, product: Node) -> bool:
    """Whether the softmax is over the last dimension; the rank is known from a transposition."""
    turned = graph.maker(product.inputs[0], "Transpose")
    perm = None if turned is None else turned.attributes.get("perm")
    rank = len(perm) if isinstance(perm, tuple) else 0
    axis = softmax.whole("axis", -1 if softmax.operator == "Softmax" else 1)
    return rank == 4 and axis in (-1, 3)
