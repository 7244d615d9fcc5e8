# SPDX-License-Identifier: Apache-2.0
"""A convolutional network run as one native call, from its images to its features.

What the network computes is read from its traced graph up to the mean over pixels, or to the first
operation that is not understood; the rest runs as it did. Images of another size go layer by layer.
"""

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from gossamer.errors import KernelError
from gossamer.formats.bits import pack_bits
from gossamer.ops.conv_net import ConvStep, NetPlan, NetValue, PackedConvNet, PoolStep, positions_of
from gossamer.ops.conv_settings import ConvSettings, Pair
from gossamer.run.fused_convs import ConvTracer, is_plain_sum, is_relu
from gossamer.run.packed_conv import PackedConv2d

_SLICES = (slice(None), slice(None), slice(None, None, 2), slice(None, None, 2))


class NotUnderstood(Exception):
    """An operation that is left to torch."""


@dataclass
class _Pending:
    """A convolution that may still take over what follows it."""

    module: PackedConv2d | nn.Conv2d
    source: int
    added: int | None = None
    added_first: int = 0


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
    _pending: dict[fx.Node, _Pending] = field(default_factory=dict)
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
        if isinstance(kind, nn.Identity | nn.Dropout):
            self._same(node)
        elif isinstance(kind, PackedConv2d | nn.Conv2d):
            self._conv(node, kind)
        elif is_relu(node, self.modules):
            self._relu(node)
        elif is_plain_sum(node):
            self._sum(node)
        elif isinstance(kind, nn.MaxPool2d):
            self._largest(node, kind)
        elif node.target is operator.getitem and tuple(node.args[1:]) == (_SLICES,):
            self._halves(node)
        elif node.target is F.pad:
            self._wider_channels(node)
        elif isinstance(kind, nn.AdaptiveAvgPool2d) or node.target == "mean":
            self._mean(node, kind)
        else:
            raise NotUnderstood

    def _same(self, node: fx.Node) -> None:
        given = node.args[0]
        for held in (self.nodes, self._pending, self._wider):
            if given in held:
                held[node] = held[given]  # type: ignore[index]
                if held is self._pending:
                    del self._pending[given]  # type: ignore[arg-type]
                return
        raise NotUnderstood

    def _conv(self, node: fx.Node, module: PackedConv2d | nn.Conv2d) -> None:
        if len(node.args) != 1 or node.kwargs:
            raise NotUnderstood
        source = self.take(node.args[0])
        try:
            positions_of(_settings(module), self.values[source].size)
        except KernelError:
            raise NotUnderstood from None
        self._pending[node] = _Pending(module, source)

    def _sum(self, node: fx.Node) -> None:
        first, second = node.args
        for conv, other in ((first, second), (second, first)):
            held = self._pending.get(conv)  # type: ignore[arg-type]
            if held is None or held.added is not None or len(conv.users) != 1:  # type: ignore[union-attr]
                continue
            number, at, channels = self._wider.get(other, (None, 0, None))  # type: ignore[call-overload]
            if number is None:
                number = self.take(other)
                channels = self.values[number].channels
            settings = _settings(held.module)
            out = settings.out_size(self.values[held.source].size)
            if self.values[number].size != out or channels != settings.out_channels:
                raise NotUnderstood
            del self._pending[conv]  # type: ignore[arg-type]
            self._pending[node] = _Pending(held.module, held.source, number, at)
            return
        raise NotUnderstood

    def _relu(self, node: fx.Node) -> None:
        before = node.args[0]
        if before not in self._pending or len(before.users) != 1:  # type: ignore[union-attr]
            raise NotUnderstood
        self._emit(before, node, relu=True)  # type: ignore[arg-type]

    def _emit(self, pending: fx.Node, node: fx.Node, *, relu: bool) -> None:
        held = self._pending.pop(pending)
        settings = _settings(held.module)
        size = settings.out_size(self.values[held.source].size)
        target = self.add(node, settings.out_channels, size, relu)
        values, bits = _kept(held.module)
        self.steps.append(
            ConvStep(
                held.source, target, settings, values, bits, held.module.bias, relu, held.added,
                held.added_first,
            )
        )  # fmt: skip

    def _largest(self, node: fx.Node, pool: nn.MaxPool2d) -> None:
        source = self.take(node.args[0])
        value = self.values[source]
        pairs = [_pair(v) for v in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)]
        settings = ConvSettings(value.channels, value.channels, *pairs)
        # Around an image are zeros, which are below everything only if nothing is negative.
        if not value.is_positive or pool.ceil_mode or pool.return_indices:
            raise NotUnderstood
        try:
            positions_of(settings, value.size)
        except KernelError:
            raise NotUnderstood from None
        target = self.add(node, value.channels, settings.out_size(value.size), True)
        self.steps.append(PoolStep(source, target, settings))

    def _halves(self, node: fx.Node) -> None:
        source = self.take(node.args[0])
        value = self.values[source]
        settings = ConvSettings(value.channels, value.channels, (1, 1), (2, 2))
        size = settings.out_size(value.size)
        target = self.add(node, value.channels, size, value.is_positive)
        self.steps.append(PoolStep(source, target, settings))

    def _wider_channels(self, node: fx.Node) -> None:
        source = self.take(node.args[0])
        amounts = list(node.args[1]) if len(node.args) > 1 else []  # type: ignore[arg-type]
        zeros = node.kwargs.get("value") in (None, 0, 0.0) and not node.args[3:]
        mode = node.kwargs.get("mode", "constant") == "constant" and not node.args[2:]
        if len(amounts) != 6 or amounts[:4] != [0] * 4 or min(amounts) < 0 or not (zeros and mode):
            raise NotUnderstood
        width = self.values[source].channels + sum(amounts)
        self._wider[node] = (source, amounts[4], width)

    def _mean(self, node: fx.Node, module: nn.Module | None) -> None:
        if module is None:
            dimensions = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
            known = {"dim", "keepdim"}
            if sorted(_as_tuple(dimensions)) not in ([2, 3], [-2, -1]) or set(node.kwargs) - known:
                raise NotUnderstood
        elif _pair(module.output_size) != (1, 1):  # type: ignore[arg-type]
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
        except NotUnderstood:
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
    if read != {lowering.exit} or not lowering.steps:
        return None
    return lowering


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


class _Tops(fx.Interpreter):
    """Runs a model and keeps the largest magnitude of some nodes."""

    def __init__(self, model: nn.Module, graph: fx.Graph, nodes: list[fx.Node]) -> None:
        super().__init__(fx.GraphModule(model, graph))
        # The module's graph is a copy.
        self._found = {node.name: 0.0 for node in nodes}

    def run_node(self, n: fx.Node) -> Any:
        y = super().run_node(n)
        if n.name in self._found:
            self._found[n.name] = float(y.abs().amax()) if y.numel() else 0.0
        return y

    def of(self, example: torch.Tensor, nodes: list[fx.Node]) -> list[float]:
        """Of one run."""
        self.run(example)
        return [self._found[node.name] for node in nodes]


class NetForward:
    """The forward of a model whose body is one native call."""

    def __init__(self, net: PackedConvNet, rest: Any, layered: Any, keeps_pixels: bool) -> None:
        self.net, self.rest, self.layered = net, rest, layered
        self._shape = (net.plan.values[0].channels, *net.plan.values[0].size)
        self._keeps_pixels = keeps_pixels

    def __call__(self, x: torch.Tensor) -> Any:
        """Images of other sizes, gradients and other dtypes go layer by layer."""
        plain = x.ndim == 4 and x.shape[1:] == self._shape and x.dtype is torch.float32 and x.is_cpu
        if not plain or torch.compiler.is_compiling() or (x.requires_grad and torch.is_grad_enabled()):
            return self.layered(x)
        features = self.net(x)
        if self._keeps_pixels:
            features = features[:, :, None, None]
        return self.rest(features)


def net_forward(
    model: nn.Module, example: torch.Tensor, precision: str
) -> tuple[NetForward, NetForward] | None:
    """Forwards in fp32 and in `precision`; None if the model has no part that a net could run."""
    try:
        graph = ConvTracer().trace(model)
    except Exception:
        return None
    lowering = lower(model, graph, example)
    if lowering is None or lowering.exit is None:
        return None
    plan, last = plan_of(lowering), lowering.exit
    keeps_pixels = lowering.mean and (
        last.op == "call_module" or bool(last.kwargs.get("keepdim", len(last.args) > 2 and last.args[2]))
    )
    rest = rest_of(graph, last, model).forward
    fp32 = NetForward(PackedConvNet(plan), rest, model.forward, keeps_pixels)
    if precision not in ("int8", "int4"):
        return fp32, fp32
    tops = _Tops(model, graph, lowering.tops).of(example, lowering.tops)
    int8 = PackedConvNet(plan, tops)
    return fp32, NetForward(int8, rest, model.forward, keeps_pixels)


def _settings(module: PackedConv2d | nn.Conv2d) -> ConvSettings:
    return module.settings if isinstance(module, PackedConv2d) else ConvSettings.of(module)


def _kept(module: PackedConv2d | nn.Conv2d) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(module, PackedConv2d):
        return module.packed.values, module.packed.mask_bits
    weight_RK = module.weight.detach().flatten(1)
    mask_RK = weight_RK != 0
    return weight_RK[mask_RK], pack_bits(mask_RK)


def _pair(value: Any) -> Pair:
    first, second = value if isinstance(value, tuple) else (value, value)
    return int(first), int(second)


def _as_tuple(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
