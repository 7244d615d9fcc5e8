# SPDX-License-Identifier: Apache-2.0
"""Two-layer networks of PyG, as all contenders of benchmarks/graphs.py start from them.

Run in the environment of the peers, too: only torch and torch_geometric may be expected.
"""

import torch
import torch.nn.functional as F
from torch import nn

HEADS = 8


class TwoLayers(nn.Module):
    """Two convolutions with an activation between them, as a user of PyG writes it."""

    def __init__(self, first, second, activation):
        super().__init__()
        self.first, self.second, self.activation = first, second, activation

    def forward(self, x, graph):
        """Logits of all nodes."""
        return self.second(self.activation(self.first(x, graph)), graph)


def two_layers(model, inputs, hidden, classes):
    """A network of two convolutions of one kind, from the same seed everywhere."""
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
    return TwoLayers(*pairs[model](), activation_of(model))


def activation_of(model):
    """What stands between two layers."""
    return F.elu if model == "gat" else F.relu


def step_of(network, x, graph, y):
    """A function that runs forward and backward and gives the loss."""

    def step():
        network.zero_grad(set_to_none=True)
        loss = F.cross_entropy(network(x, graph), y)
        loss.backward()
        return loss.detach()

    return step
