# SPDX-License-Identifier: Apache-2.0
"""The graph of an ONNX file while it is being imported: nodes by the values they make and use."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError
from gossamer.nn.operator_graph import PlanInput
from gossamer.nn.operator_graph.operators import Attribute


@dataclass(eq=False)
class Node:
    """One operator, or one layer if there is a `layer`; absent inputs have an empty name."""

    operator: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Attribute] = field(default_factory=dict)
    name: str = ""
    layer: nn.Module | None = None

    def __str__(self) -> str:
        return f"node {self.name[:200]!a} ({self.operator})"

    def input(self, place: int) -> str:
        """The name of an input, empty if it is absent."""
        return self.inputs[place] if place < len(self.inputs) else ""

    def number(self, name: str, default: float) -> Any:
        """An attribute that is a number, whole if `default` is; it was checked when it was read."""
        value = self.attributes.get(name, default)
        return type(default)(value) if isinstance(value, int | float) else default


@dataclass
class OnnxGraph:
    """Nodes and constants; rewrites keep `producer` and `users` right.

    Attributes:
        where: the file, for messages.
        inputs: arguments of the model.
        outputs: public names and the values they stand for.
        constants: tensors by the name of their value.
        origins: what a constant was called in the file, where it was made from another one.
        scales: of constants that are dequantised weights.
        shared: names of constants that several nodes of the file use.
    """

    where: str
    inputs: tuple[PlanInput, ...]
    outputs: list[tuple[str, str]]
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    scales: dict[str, torch.Tensor] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    producer: dict[str, Node] = field(default_factory=dict)
    users: dict[str, list[Node]] = field(default_factory=dict)
    _fresh: int = 0

    def add(self, *nodes: Node) -> None:
        """Put nodes into the graph; their order does not matter."""
        for node in nodes:
            self.producer |= dict.fromkeys(filter(None, node.outputs), node)
            for value in set(node.inputs):
                self.users.setdefault(value, []).append(node)

    def remove(self, *nodes: Node) -> None:
        """Take nodes out; what they made must be made by another node or used by nobody."""
        for node in nodes:
            for value in node.outputs:
                if self.producer.get(value) is node:
                    del self.producer[value]
            for value in set(node.inputs):
                self.users[value].remove(node)

    def replace(self, old: Node, *new: Node) -> None:
        """Put nodes in the place of one that makes the same values."""
        self.remove(old)
        self.add(*new)

    def put_layer(
        self, layer: nn.Module, source: str, last: Node, *parameters: str, name: str = ""
    ) -> None:
        """Let a layer make what `last` makes now.

        What it might be called, best first: its parameters' names; `name`, which is that of `last`
        if nothing is said. Exporters store equal tensors once: a parameter that others use too
        names nobody.
        """
        if parameters and parameters[0] in self.scales:
            self.scales[last.outputs[0]] = self.scales[parameters[0]]
        titles = [self.origins.get(each, each) for each in parameters if each]
        titles = [each for each in titles if each not in self.shared] + [name or last.name]
        new = Node(type(layer).__name__, [source], last.outputs, {}, "\n".join(titles), layer)
        self.replace(last, new)

    def alias(self, old: str, new: str) -> None:
        """Let everybody who uses `old` use `new` instead."""
        users = self.users.setdefault(new, [])
        for node in self.users.pop(old, []):
            if node not in users:
                users.append(node)
            node.inputs = [new if value == old else value for value in node.inputs]
        self.outputs = [(name, new if value == old else value) for name, value in self.outputs]

    def constant(self, tensor: torch.Tensor, like: str = "") -> str:
        """Name a new constant; `like` is the constant it was made from."""
        name = like + self.value()
        self.constants[name] = tensor
        self.origins[name] = self.origins.get(like, like)
        return name

    def value(self) -> str:
        """A name for a new value."""
        self._fresh += 1
        return f"'{self._fresh}"

    def sole_user(self, value: str) -> Node | None:
        """The only node that uses a value that is no result; None if there are others."""
        users = self.users.get(value, [])
        is_result = any(value == result for _, result in self.outputs)
        return None if is_result or len(users) != 1 else users[0]

    def maker(self, value: str, *operators: str) -> Node | None:
        """The node that makes a value, if it is one of `operators`."""
        node = self.producer.get(value)
        return node if node is not None and node.operator in operators else None

    def scalar(self, value: str) -> float | None:
        """A constant of one number."""
        tensor = self.constants.get(value)
        return float(tensor) if tensor is not None and tensor.numel() == 1 else None

    def nodes(self, *operators: str) -> list[Node]:
        """Nodes that results depend on, makers before users; of `operators` if any are named."""
        return [node for node in self._ordered() if not operators or node.operator in operators]

    def drop_dead(self) -> None:
        """Take out nodes that no result depends on."""
        alive = set(self._ordered())
        self.remove(*(node for node in dict.fromkeys(self.producer.values()) if node not in alive))

    def _ordered(self) -> Iterator[Node]:
        done: set[Node] = set()
        open_nodes: set[Node] = set()
        # Depth first without recursion: graphs are thousands of nodes deep.
        stack = [self.producer[v] for _, v in reversed(self.outputs) if v in self.producer]
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
                continue
            makers = [self.producer[v] for v in node.inputs if v in self.producer]
            waiting = [maker for maker in makers if maker not in done]
            if not waiting:
                open_nodes.discard(node)
                done.add(stack.pop())
                yield node
            elif node in open_nodes:
                raise ArtifactError(f"{self.where}: {node} depends on itself; the graph is cyclic.")
            else:
                open_nodes.add(node)
                stack.extend(reversed(waiting))
