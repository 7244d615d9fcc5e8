# SPDX-License-Identifier: Apache-2.0
"""Models of PyG for inference: convolutions that are known are computed by `gossamer.graph`."""

from torch import nn

from gossamer.graph import accelerate
from gossamer.graph.pyg import watch_between
from gossamer.nn.surgery.left import leave
from gossamer.ops.fallback import report_fallback


def use_graph_layers(model: nn.Module) -> nn.Module:
    """The model with its convolutions replaced, in place; one that stays says why."""
    holder = nn.ModuleList([model])  # a model may be a single convolution
    found = accelerate(holder)
    for name, why in found.left.items():
        leave(holder.get_submodule(name), why)
        report_fallback(name.partition(".")[2] or type(model).__name__, why)
    if found.replaced:
        watch_between(holder[0])
    return holder[0]
