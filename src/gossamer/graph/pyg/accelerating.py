# SPDX-License-Identifier: Apache-2.0
"""`accelerate`: convolutions of PyG become layers of this package, in place.

Parameters are taken over, not copied: optimizers, state dicts and hooks on parameters go on as
before. Layers share one table of graphs, so that an `edge_index` is sorted once for all of them.
What the model computes between them is in `between.py`.
"""

from dataclasses import dataclass, field

from torch import nn

from gossamer.errors import InputError
from gossamer.graph.layer import KnownGraphs
from gossamer.graph.pyg.between import watch_between
from gossamer.graph.pyg.converting import CONVERTERS, Unsupported, is_convolution


@dataclass(frozen=True)
class Accelerated:
    """What became of each convolution.

    Attributes:
        model: the model, which was changed in place.
        replaced: names of layers that run here now.
        left: names of layers that stay as they were, with the reason.
    """

    model: nn.Module
    replaced: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} layers replaced: {', '.join(self.replaced) or 'none'}"]
        lines += [f"{name} stays: {why}" for name, why in self.left.items()]
        return "\n".join(lines)


def accelerate(model: nn.Module) -> Accelerated:
    """Let the convolutions of a PyG model run on this package's kernels, for training or inference.

    Outputs and gradients are the same up to rounding. A layer that is not known, or has a setting
    that is not, stays and is named.

    Args:
        model: a module with `GCNConv`, `SAGEConv`, `GINConv`, `GATConv`, `GATv2Conv`, `SGConv` or
            `LGConv` somewhere inside; it is changed in place.
    """
    if is_convolution(model):
        raise InputError(
            f"accelerate: {type(model).__name__} is a single layer, which cannot be replaced in"
            " place. Put it into a module, for example torch.nn.ModuleList([layer])."
        )
    result = Accelerated(model)
    graphs = KnownGraphs()
    made: dict[int, nn.Module] = {}  # a layer that is used twice stays one
    for parent_name, parent in list(model.named_modules()):
        for child_name, child in list(parent._modules.items()):  # a shared layer comes each time
            name = f"{parent_name}.{child_name}" if parent_name else child_name
            if child is None or not is_convolution(child):
                continue
            if id(child) not in made:
                convert = CONVERTERS.get(type(child).__name__)
                try:
                    if convert is None:
                        raise Unsupported(f"{type(child).__name__} is not known here")
                    made[id(child)] = convert(child)
                except Unsupported as reason:
                    result.left[name] = str(reason)
                    continue
                layer = made[id(child)]
                layer.graphs = graphs  # type: ignore[assignment]
                layer.train(child.training)
                _in_order_of(child, layer)
            setattr(parent, child_name, made[id(child)])
            result.replaced.append(name)
    if result.replaced:
        watch_between(model)
    return result


def _in_order_of(conv: nn.Module, layer: nn.Module) -> None:
    """Parameters come as they did: the state of an optimizer goes by their order."""
    for table in ("_parameters", "_modules"):
        ours, theirs = getattr(layer, table), list(getattr(conv, table))
        for name in sorted(ours, key=lambda n: theirs.index(n) if n in theirs else len(theirs)):
            ours[name] = ours.pop(name)
