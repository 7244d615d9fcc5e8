# SPDX-License-Identifier: Apache-2.0
"""Patterns of nodes, written down as the formulas that they stand for.

A pattern is matched against a value: `made("Mul", "x", number(0.5))` is a product of anything,
called x from then on, and one half. What has one name must be one value wherever it appears.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from gossamer.io.onnx.graph import Node, OnnxGraph

# fp32 constants in files are rounded, some of them to a few digits.
_CLOSE = 1e-4

# Values by the names that a pattern gives them.
Found = dict[str, str]
# Every way in which a value can match, given what was found before.
Pattern = Callable[[OnnxGraph, str, Found], Iterator[Found]]


def find(graph: OnnxGraph, operator: str, pattern: Pattern) -> Iterator[tuple[Node, Found]]:
    """The nodes of an operator that make what the pattern describes, and the values it names.

    The caller may replace a node before it asks for the next one.
    """
    for node in graph.nodes(operator):
        for found in pattern(graph, node.outputs[0], {}):
            yield node, found
            break


def made(
    operators: str,
    *inputs: Pattern | str,
    name: str = "",
    alone: bool = False,
    swaps: bool = False,
    where: Callable[[OnnxGraph, Node], bool] = lambda graph, node: True,
) -> Pattern:
    """What an operator makes of its inputs.

    Args:
        operators: one name, or several with spaces in between.
        inputs: patterns of the first inputs, or names for them.
        name: of the value itself.
        alone: nothing but the pattern around it may use the value.
        swaps: the inputs may come in either order, as those of a sum or product.
        where: what else must be true of the node.
    """
    patterns = [_anything(each) if isinstance(each, str) else each for each in inputs]

    def matches(graph: OnnxGraph, value: str, found: Found) -> Iterator[Found]:
        node = graph.maker(value, *operators.split())
        used_elsewhere = alone and graph.sole_user(value) is None
        if node is None or used_elsewhere or not where(graph, node):
            return
        for given in (node.inputs, node.inputs[::-1])[: 2 if swaps else 1]:
            yield from _all_match(graph, patterns, given, {**found, name: value})

    return matches


def either(*patterns: Pattern) -> Pattern:
    """A value that matches one of several patterns."""

    def matches(graph: OnnxGraph, value: str, found: Found) -> Iterator[Found]:
        for pattern in patterns:
            yield from pattern(graph, value, found)

    return matches


def constant(name: str, fits: Callable[[torch.Tensor], bool] = lambda tensor: True) -> Pattern:
    """A constant for which `fits` is true."""

    def matches(graph: OnnxGraph, value: str, found: Found) -> Iterator[Found]:
        if value in graph.constants and fits(graph.constants[value]):
            yield {**found, name: value}

    return matches


def scalar(name: str) -> Pattern:
    """A constant of one number."""
    return constant(name, lambda tensor: tensor.numel() == 1)


def number(wanted: float, tolerance: float = _CLOSE) -> Pattern:
    """A constant of one number that is about the one that is wanted."""
    return constant(
        "", lambda t: t.numel() == 1 and math.isclose(float(t), wanted, rel_tol=tolerance)
    )


def _anything(name: str) -> Pattern:
    def matches(graph: OnnxGraph, value: str, found: Found) -> Iterator[Found]:
        if found.get(name, value) == value:
            yield {**found, name: value}

    return matches


def _all_match(
    graph: OnnxGraph, patterns: Sequence[Pattern], values: Sequence[str], found: Found
) -> Iterator[Found]:
    if not patterns:
        yield found
    elif values:
        for more in patterns[0](graph, values[0], found):
            yield from _all_match(graph, patterns[1:], values[1:], more)
