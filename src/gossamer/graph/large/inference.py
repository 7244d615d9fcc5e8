# SPDX-License-Identifier: Apache-2.0
"""All nodes, layer by layer: every edge is used once per layer, and one layer is in memory."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.errors import InputError
from gossamer.graph.layer import GraphLayer
from gossamer.graph.structure import Graph


def infer(
    steps: Sequence[Callable[..., Tensor]], x: Tensor, graph: Any, *, rows_at_once: int = 65536
) -> Tensor:
    """What a chain of layers gives for all nodes, without gradients.

    Layers of a graph see it whole; everything between them (activations, norms, linear layers) runs
    on some rows at a time. Two tensors of all nodes exist at once: what a layer takes and gives.

    Args:
        steps: layers of this package, which are called with features and the graph, and functions
            of features that treat each row by itself.
        x: [N, F].
        graph: a `Graph`, or what `Graph.of` takes.
        rows_at_once: for what lies between.
    """
    if rows_at_once < 1:
        raise InputError(f"infer: rows_at_once must be at least 1, got {rows_at_once}.")
    found = Graph.of(graph, num_nodes=None if isinstance(graph, Graph) else x.shape[0])
    modules = [step for step in steps if isinstance(step, nn.Module)]
    training = [module.training for module in modules]
    try:
        for module in modules:
            module.eval()
        with torch.no_grad():
            for step in steps:
                if isinstance(step, GraphLayer):
                    keeps, step.keeps = step.keeps, False
                    try:
                        x = step(x, found)
                    finally:
                        step.keeps = keeps
                else:
                    parts = x.split(rows_at_once)  # type: ignore[no-untyped-call]
                    x = torch.cat([step(part) for part in parts])
    finally:
        for module, was in zip(modules, training, strict=True):
            module.train(was)
    return x
