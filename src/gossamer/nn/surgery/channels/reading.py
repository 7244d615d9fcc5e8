# SPDX-License-Identifier: Apache-2.0
"""Follows the channels of a network through its traced graph: `read_channels`.

An operation that is not understood fixes the channels it reads: they are never cut, and the rest of
the network still may be. So is what a hooked module reads, or one whose weight others hold, too.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.errors import TargetError
from gossamer.nn.layer_kinds import form_of, kind_name
from gossamer.nn.layer_weights import holders_of, weight_of
from gossamer.nn.layers.parts import SparseLayer
from gossamer.nn.layers.shortcut import padding_of
from gossamer.nn.surgery.carried import carried_by_calls
from gossamer.nn.surgery.channels.cells import ChannelCells, Value
from gossamer.nn.surgery.channels.operators import (
    KEEPS_ZEROS,
    LOSES_ZEROS,
    PRODUCTS,
    SUMS,
    is_spatial,
    means_pixels,
)

Role = Literal["product", "norm", "shortcut"]
_MEANS = (torch.mean, "mean")
_CATS = (torch.cat, torch.concat)
_FLAT = (nn.Flatten, torch.flatten, "flatten", "view", "reshape", "squeeze")
# Take sizes, which may say how many channels there were.
_SIZED = ("view", "reshape")


@dataclass
class LayerCells:
    """The channels that one layer reads and makes.

    Attributes:
        role: "product" of a Linear or a convolution, "norm", or "shortcut".
        inputs: cells of the columns of its weight; none of norms.
        outputs: cells of its rows, or of its numbers per channel.
        groups: of a convolution.
    """

    role: Role
    inputs: list[int]
    outputs: list[int]
    groups: int = 1


@dataclass
class ChannelMap:
    """What is known of the channels of a network.

    Attributes:
        cells: all channels.
        layers: by name.
        reads: cells that some product reads, and which of them make no difference to it.
        unknown: operations that fixed what they read, in their order.
    """

    cells: ChannelCells = field(default_factory=ChannelCells)
    layers: dict[str, LayerCells] = field(default_factory=dict)
    reads: list[tuple[tuple[int, ...], torch.Tensor]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def dead(self) -> set[int]:
        """Groups that nothing needs: whoever reads one of their channels reads 0, or ignores it."""
        needed = self.cells.fixed()
        for cells, idle in self.reads:
            groups = zip(self.cells.groups(cells), idle.tolist(), strict=True)
            needed |= {group for group, unread in groups if not unread}
        made = {g for layer in self.layers.values() for g in self.cells.groups(layer.outputs)}
        return made - needed


def read_channels(model: nn.Module, example: torch.Tensor) -> ChannelMap:
    """The channels of `model`, whose forward takes one tensor such as `example`.

    Raises:
        TargetError: the forward cannot be traced, or layers are packed for inference already.
    """
    for name, module in model.named_modules():
        if form_of(module) == "packed":
            raise TargetError(
                f"{name}: is packed for inference, and channels are cut before. Cut them in the"
                " model that was given to gossamer.compile."
            )
    try:
        graph = _Tracer(model).trace(model)
    except Exception as error:
        raise TargetError(
            f"{type(model).__name__}: its forward cannot be traced ({str(error)[:200]}), so nobody"
            " knows where its channels go. Take data-dependent branches out of it."
        ) from error
    shapes = _Shapes(model, graph)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            shapes.run(example[:2])
    finally:
        for module, mode in modes.items():
            module.training = mode
    reader = _Reader(dict(model.named_modules(remove_duplicate=False)), shapes.found)
    shared = [holders for holders in holders_of(model).values() if len(holders) > 1]
    reader.shared = {id(module) for holders in shared for _, module in holders}
    for node in graph.nodes:
        reader.read(node)
    return reader.map


class _Tracer(fx.Tracer):
    """Layers and shortcuts are nodes, not what they are made of."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # Asked before: recognising a shortcut traces it.
        self._shortcuts = {m for m in model.modules() if padding_of(m) is not None}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        stays = isinstance(m, SparseLayer) or carried_by_calls(m) is not None
        plain = super().is_leaf_module(m, module_qualified_name)
        return stays or plain or m in self._shortcuts


class _Shapes(fx.Interpreter):
    """Runs a graph and keeps the shape of what each node gave; None where that is no tensor."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        super().__init__(fx.GraphModule(model, graph))
        self.found: dict[str, tuple[int, ...] | None] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        is_number = isinstance(result, int | torch.Size)
        self.found[n.name] = tuple(result.shape) if isinstance(result, torch.Tensor) else None
        if is_number:
            del self.found[n.name]
        return result


class _Reader:
    """Reads node after node; `map` grows."""

    def __init__(self, modules: dict[str, nn.Module], shapes: dict[str, Any]) -> None:
        self.map = ChannelMap()
        self.shared: set[int] = set()
        self._modules, self._shapes = modules, shapes
        self._values: dict[fx.Node, Value | None] = {}

    def read(self, node: fx.Node) -> None:
        """Understand one node, or fix what it reads."""
        if node.name not in self._shapes:
            return  # a size, which follows the channels by itself
        if node.op == "placeholder":
            shape = self._shapes[node.name]
            made = None if shape is None or len(shape) < 2 else self._fresh(shape[1])
            self.map.cells.fix([] if made is None else made.cells)
        else:
            made = None if node.op == "output" else self._understood(node)
            if made is None:
                self._fix_inputs(node)
        self._values[node] = made

    def _understood(self, node: fx.Node) -> Value | None:
        if node.op == "call_module":
            return self._module(str(node.target), node)
        return self._operation(node.target, node) if node.op.startswith("call_") else None

    def _module(self, name: str, node: fx.Node) -> Value | None:
        module = self._modules[name]
        x = self._only(node)
        is_bound = carried_by_calls(module) is not None or id(module) in self.shared
        if is_bound and x is not None:
            self.map.cells.fix(x.cells)
            x = None
        if kind_name(module) in ("linear", "conv") or type(module) is nn.Conv1d:
            made = self._product(name, module, x, self._shapes[node.name])
            self.map.cells.fix(made.cells if is_bound else ())
            return made
        if x is None:
            return None
        if isinstance(module, _BatchNorm) and x.axis == 1:
            return self._norm(name, module, x)
        padding = padding_of(module)
        if padding is not None:
            before, after = (self._fresh(n, True) for n in (padding.before, padding.after))
            cells = (*before.cells, *x.cells, *after.cells)
            self.map.layers[name] = LayerCells("shortcut", list(x.cells), list(cells))
            return Value(cells, torch.cat((before.zero, x.zero, after.zero)))
        return self._operation(type(module), node)

    def _product(self, name: str, layer: Any, x: Value | None, shape: Any) -> Value:
        groups = getattr(layer, "groups", 1)
        weight = weight_of(layer)
        rows, width = weight.shape[:2]
        axis = len(shape) - 1 if kind_name(layer) == "linear" else 1
        cells = self.map.cells
        used = (weight != 0).flatten(2).any(2) if weight.ndim > 2 else weight != 0
        made = self._fresh(rows)
        if x is None or x.axis != axis or len(x.cells) != width * groups:
            # What comes in is not known, and every column reads of it.
            cells.fix(() if x is None else x.cells)
            x = self._fresh(width * groups)
            cells.fix(x.cells)
        live = used.view(groups, rows // groups, width) & ~x.zero.view(groups, 1, width)
        bias = layer._parameters.get("bias")
        zero = ~live.any(2).flatten() & (bias is None or bias.detach() == 0)
        made = Value(made.cells, zero, axis)
        if groups == rows == width * groups and groups > 1:
            cells.join(x.cells, made.cells)  # depthwise: channel by channel
        else:
            self.map.reads.append((x.cells, ~live.any(1).flatten()))
        held = self.map.layers.get(name)
        if held is not None:
            cells.join(held.inputs, x.cells)
            cells.join(held.outputs, made.cells)
        self.map.layers[name] = LayerCells("product", [*x.cells], [*made.cells], groups)
        return made

    def _norm(self, name: str, norm: _BatchNorm, x: Value) -> Value:
        zero = torch.zeros_like(x.zero)
        if norm.affine:
            zero = (norm.weight.detach() == 0) & (norm.bias.detach() == 0)
        held = self.map.layers.get(name)
        if held is not None:
            self.map.cells.join(held.outputs, x.cells)
        self.map.layers[name] = LayerCells("norm", [], list(x.cells))
        return Value(x.cells, zero)

    def _operation(self, target: Any, node: fx.Node) -> Value | None:
        values = [self._values.get(given) for given in self._tensors(node)]
        known = [value for value in values if value is not None]
        shape = self._shapes[node.name]
        if not known or len(known) != len(values) or shape is None:
            return None
        x = known[0]
        if target in KEEPS_ZEROS or target in LOSES_ZEROS:
            same = len(known) == 1 and len(shape) > x.axis
            zero = x.zero if target in KEEPS_ZEROS else torch.zeros_like(x.zero)
            return Value(x.cells, zero, x.axis) if same else None
        if target in SUMS or target in PRODUCTS:
            return self._pairwise(known, target in PRODUCTS)
        if target in _CATS:
            return self._joined(known, node)
        given = self._shapes[next(self._tensors(node)).name]
        if target in _FLAT:
            return self._flat(x, given, shape, node)
        if target in _MEANS:
            dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
            return x if means_pixels(dims, len(given), x.axis) else None
        if getattr(target, "__name__", "") == "getitem":
            return x if is_spatial(node.args[1], x.axis) else None
        return None

    def _pairwise(self, known: list[Value], is_product: bool) -> Value | None:
        first, *others = known
        if not others:
            # With a number: 0 + 1 is no zero.
            zero = first.zero if is_product else torch.zeros_like(first.zero)
            return Value(first.cells, zero, first.axis)
        (second,) = others
        if first.axis != second.axis or len(first.cells) != len(second.cells):
            return None
        self.map.cells.join(first.cells, second.cells)
        zero = first.zero | second.zero if is_product else first.zero & second.zero
        return Value(first.cells, zero, first.axis)

    def _joined(self, known: list[Value], node: fx.Node) -> Value | None:
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        if any(value.axis != dim for value in known):
            return None
        cells = tuple(cell for value in known for cell in value.cells)
        return Value(cells, torch.cat([value.zero for value in known]), known[0].axis)

    def _flat(self, x: Value, given: Any, shape: Any, node: fx.Node) -> Value | None:
        """[N, C, ...] as [N, all of it]; sizes that are written down would not follow a cut."""
        if x.axis != 1 or shape != (given[0], math.prod(given[1:])):
            return None
        sizes = node.args[1:] if node.op == "call_method" and node.target in _SIZED else ()
        if any(type(size) is int and size > 1 for size in sizes[1:]):
            return None
        times = math.prod(given[2:])
        cells = tuple(cell for cell in x.cells for _ in range(times))
        return Value(cells, x.zero.repeat_interleave(times))

    def _fresh(self, count: int, zero: bool = False) -> Value:
        return Value(tuple(self.map.cells.new(count)), torch.full((count,), zero))

    def _only(self, node: fx.Node) -> Value | None:
        given = list(self._tensors(node))
        return self._values.get(given[0]) if len(given) == 1 else None

    def _tensors(self, node: fx.Node) -> Iterator[fx.Node]:
        return (given for given in node.all_input_nodes if given.name in self._shapes)

    def _fix_inputs(self, node: fx.Node) -> None:
        values = [self._values.get(given) for given in self._tensors(node)]
        for value in values:
            self.map.cells.fix(() if value is None else value.cells)
        if node.op not in ("output", "get_attr"):
            self.map.unknown.append(f"{node.name} ({_title(node, self._modules)})")


def _title(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    if node.op == "call_module":
        return type(modules[str(node.target)]).__name__
    return getattr(node.target, "__name__", str(node.target))
