# SPDX-License-Identifier: Apache-2.0
"""Reads what a convolutional network computes from its traced graph, as steps of a native call.

Nodes are understood one by one, up to the mean over pixels or to the first one that is not.
"""

import operator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from gossamer.errors import KernelError
from gossamer.nn.layer_weights import matrix_of
from gossamer.nn.surgery.carried import carried, carried_by_calls
from gossamer.ops import kernels_for
from gossamer.ops.conv import ConvSettings, Pair, positions_of
from gossamer.ops.engines.conv_net import ConvStep, NetPlan, NetValue, PoolStep
from gossamer.running.conv_net.fused_convs import is_plain_sum, is_relu
from gossamer.running.packed import PackedConv2d

_SLICES = (slice(None), slice(None), slice(None, None, 2), slice(None, None, 2))


class NotUnderstood(Exception):
    """An operation that is left to torch."""


@dataclass
class Lowering:
    """A plan that grows node by node.

    Attributes:
        nodes: the values that exist, by the node that computes them.
        tops: the node whose output is each value, in their order.
        exit: the node that the network's result stands for.
    """

    modules: dict[str, nn.Module]
    values: list[NetValue] = field(default_factory=list)
    steps: list[ConvStep | PoolStep] = field(default_factory=list)
    nodes: dict[fx.Node, int] = field(default_factory=dict)
    tops: list[fx.Node] = field(default_factory=list)
    exit: fx.Node | None = None
    mean: bool = False
    _pending: dict[fx.Node, ConvStep] = field(default_factory=dict)
    _wider: dict[fx.Node, tuple[int, int, int]] = field(default_factory=dict)

    def add(self, node: fx.Node, channels: int, size: Pair, is_positive: bool) -> int:
        """A new value, the output of `node`."""
        self.values.append(NetValue(channels, size, is_positive))
        self.tops.append(node)
        self.nodes[node] = len(self.values) - 1
        return self.nodes[node]

    def take(self, node: Any) -> int:
        """The value of a node that is or may be computed."""
        if node in self._pending:
            self._emit(node, node, relu=False)
        if node not in self.nodes:
            raise NotUnderstood
        return self.nodes[node]

    def read(self, node: fx.Node) -> None:
        """Understand one node, or raise NotUnderstood."""
        kind = None if node.op != "call_module" else self.modules[str(node.target)]
        if kind is not None and carried_by_calls(kind) is not None:
            raise NotUnderstood
        if isinstance(kind, nn.Identity | nn.Dropout):
            self._same(node)
        elif isinstance(kind, PackedConv2d | nn.Conv2d):
            self._conv(node, kind)
        elif is_relu(node, self.modules):
            before: Any = node.args[0]
            if before not in self._pending or len(before.users) != 1:
                raise NotUnderstood
            self._emit(before, node, relu=True)
        elif is_plain_sum(node):
            self._sum(node)
        elif isinstance(kind, nn.MaxPool2d):
            self._largest(node, kind)
        elif node.target is operator.getitem and tuple(node.args[1:]) == (_SLICES,):
            self._pool(node, (1, 1), (2, 2))
        elif node.target is F.pad:
            self._wider_channels(node)
        elif isinstance(kind, nn.AdaptiveAvgPool2d) or node.target == "mean":
            self._mean(node, kind)
        else:
            raise NotUnderstood

    def _same(self, node: fx.Node) -> None:
        given: Any = node.args[0]
        if given in self._pending:
            self._pending[node] = self._pending.pop(given)
        elif given in self._wider:
            self._wider[node] = self._wider[given]
        else:
            self.nodes[node] = self.take(given)

    def _conv(self, node: fx.Node, module: PackedConv2d | nn.Conv2d) -> None:
        stock = isinstance(module, PackedConv2d) or carried(module) is None
        if len(node.args) != 1 or node.kwargs or not stock:
            raise NotUnderstood
        source, settings = self.take(node.args[0]), ConvSettings.of(module)
        # Without a target: it may still take over what follows it.
        facts = (source, -1, settings, matrix_of(module), module.bias, False)
        step = ConvStep(*facts, layer=str(node.target))
        if not kernels_for("conv", step.problem(self.values[source].size)):
            raise NotUnderstood
        self._pending[node] = step

    def _sum(self, node: fx.Node) -> None:
        summands: Any = node.args
        for conv, other in (summands, summands[::-1]):
            held = self._pending.get(conv)
            if held is None or held.added is not None or len(conv.users) != 1:
                continue
            if other in self._wider:
                number, at, channels = self._wider[other]
            else:
                number, at = self.take(other), 0
                channels = self.values[number].channels
            if (channels, self.values[number].size) != self._result_of(held):
                raise NotUnderstood
            del self._pending[conv]
            self._pending[node] = replace(held, added=number, added_first=at)
            return
        raise NotUnderstood

    def _emit(self, pending: fx.Node, node: fx.Node, *, relu: bool) -> None:
        step = self._pending.pop(pending)
        target = self.add(node, *self._result_of(step), relu)
        self.steps.append(replace(step, target=target, relu=relu))

    def _result_of(self, step: ConvStep) -> tuple[int, Pair]:
        """Channels and size of what a convolution gives."""
        size = step.settings.out_size(self.values[step.source].size)
        return step.settings.out_channels, size

    def _largest(self, node: fx.Node, pool: nn.MaxPool2d) -> None:
        is_positive = self.values[self.take(node.args[0])].is_positive
        # Around an image are zeros, which are below everything only if nothing is negative.
        if not is_positive or pool.ceil_mode or pool.return_indices:
            raise NotUnderstood
        self._pool(node, *map(_pair, (pool.kernel_size, pool.stride, pool.padding, pool.dilation)))

    def _pool(self, node: fx.Node, *window: Any) -> None:
        """The largest pixel of each window: its size, stride, padding and dilation."""
        source = self.take(node.args[0])
        value = self.values[source]
        settings = ConvSettings(value.channels, value.channels, *window)
        positions_of(settings, value.size)
        target = self.add(node, value.channels, settings.out_size(value.size), value.is_positive)
        self.steps.append(PoolStep(source, target, settings))

    def _wider_channels(self, node: fx.Node) -> None:
        source = self.take(node.args[0])
        amounts = list(node.args[1]) if len(node.args) > 1 else []  # type: ignore[arg-type]
        zeros = node.kwargs.get("value") in (None, 0, 0.0) and not node.args[3:]
        mode = node.kwargs.get("mode", "constant") == "constant" and not node.args[2:]
        if len(amounts) != 6 or amounts[:4] != [0] * 4 or min(amounts) < 0 or not (zeros and mode):
            raise NotUnderstood
        self._wider[node] = (source, amounts[4], self.values[source].channels + sum(amounts))

    def _mean(self, node: fx.Node, module: nn.Module | None) -> None:
        if module is None:
            given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
            dimensions = sorted(given) if isinstance(given, list | tuple) else [given]
            if dimensions not in ([2, 3], [-2, -1]) or set(node.kwargs) - {"dim", "keepdim"}:
                raise NotUnderstood
        elif _pair(module.output_size) != (1, 1):
            raise NotUnderstood
        self.take(node.args[0])
        self.exit, self.mean = node, True


def lower(model: nn.Module, graph: fx.Graph, example: torch.Tensor) -> Lowering | None:
    """As much of the graph as is understood; None if that is not one part with one result."""
    lowering = Lowering(dict(model.named_modules(remove_duplicate=False)))
    nodes = list(graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    if len(inputs) != 1 or example.ndim != 4:
        return None
    lowering.add(inputs[0], example.shape[1], (example.shape[2], example.shape[3]), False)
    understood = {inputs[0]}
    for node in nodes[1:]:
        try:
            lowering.read(node)
        except (NotUnderstood, KernelError):
            break
        understood.add(node)
        if lowering.exit is not None:
            break
    later = [node for node in nodes if node not in understood]
    read = {given for node in later for given in node.all_input_nodes if given in understood}
    if lowering.exit is None and len(read) == 1:
        (lowering.exit,) = read
        try:
            lowering.take(lowering.exit)
        except NotUnderstood:
            return None
    return lowering if read == {lowering.exit} and lowering.steps else None


def plan_of(lowering: Lowering) -> NetPlan:
    """What was understood, as the kernel takes it."""
    node: Any = lowering.exit
    result = lowering.take(node.args[0] if lowering.mean else node)
    return NetPlan(tuple(lowering.values), tuple(lowering.steps), result, lowering.mean)


def rest_of(graph: fx.Graph, last: fx.Node, model: nn.Module) -> fx.GraphModule:
    """The graph behind a node, as a module that takes the node's output."""
    nodes = list(graph.nodes)
    rest = fx.Graph()
    copies = {last: rest.placeholder("features")}
    for node in nodes[nodes.index(last) + 1 :]:
        copies[node] = rest.node_copy(node, lambda given: copies[given])
    rest.lint()
    return fx.GraphModule(model, rest).eval()


def _pair(value: Any) -> Pair:
    first, second = value if isinstance(value, tuple) else (value, value)
    return int(first), int(second)
