# SPDX-License-Identifier: Apache-2.0
"""Two-layer networks of PyG, as all contenders of benchmarks/graphs.py start from them.

Run in the environment of the peers, too: only torch and torch_geometric may be expected.
"""

import torch
import torch.nn.functional as F
from torch import nn

HEADS = 8


def two_layers(model, inputs, hidden, classes):
    """Two convolutions of one kind, from the same seed everywhere."""
    from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

    def mlp(a, b):
        return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))

    torch.manual_seed(0)
    pairs = {
        "gcn": lambda: (GCNConv(inputs, hidden, cached=False), GCNConv(hidden, classes)),
        "sage": lambda: (SAGEConv(inputs, hidden), SAGEConv(hidden, classes)),
        "gin": lambda: (GINConv(mlp(inputs, hidden)), GINConv(mlp(hidden, classes))),
        "gat": lambda: (
            GATConv(inputs, hidden // HEADS, heads=HEADS),
            GATConv(hidden, classes, heads=HEADS, concat=False),
        ),
    }
    return nn.ModuleList(pairs[model]())


def step_of(layers, x, graph, y):
    """A function that runs forward and backward and gives the loss."""

    def step():
        layers.zero_grad(set_to_none=True)
        h = layers[0](x, graph)
        h = layers[1](F.elu(h) if "GAT" in type(layers[0]).__name__ else F.relu(h), graph)
        loss = F.cross_entropy(h, y)
        loss.backward()
        return loss.detach()

    return step
