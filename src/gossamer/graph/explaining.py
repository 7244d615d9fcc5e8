# SPDX-License-Identifier: Apache-2.0
"""What each layer of a model does with its graph, and why."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from gossamer.graph.layer import GraphLayer


@dataclass(frozen=True)
class LayerOrder:
    """How one layer multiplies.

    Attributes:
        name: in the model.
        layer: its class.
        order: of the last call; "not run yet" before the first one.
        why: it was chosen.
        microseconds: of products with the graph per step, transform first and propagate first,
            where they were measured.
    """

    name: str
    layer: str
    order: str
    why: str
    microseconds: tuple[float, float] | None

    def __str__(self) -> str:
        measured = ""
        if self.microseconds is not None:
            transform, propagate = self.microseconds
            measured = f" ({transform:.0f} us transform first, {propagate:.0f} us propagate first)"
        return f"{self.name or '(model)'} {self.layer}: {self.order}, {self.why}{measured}"


class GraphExplanation(list[LayerOrder]):
    """One row for each layer of a graph; prints as text."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def graph_layers(model: nn.Module) -> Iterator[GraphLayer]:
    """All layers of graphs inside of a model."""
    return (module for module in model.modules() if isinstance(module, GraphLayer))


def explain(model: nn.Module) -> GraphExplanation:
    """In which order each layer of a graph multiplied in its last call, and why."""
    rows = GraphExplanation()
    for name, layer in model.named_modules():
        if isinstance(layer, GraphLayer):
            choice = layer.choice
            order, why = ("not run yet", "call the model") if choice is None else (
                choice.order, choice.why
            )  # fmt: skip
            us = None if choice is None else choice.microseconds
            rows.append(LayerOrder(name, type(layer).__name__, order, why, us))
    return rows
