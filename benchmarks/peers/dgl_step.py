# SPDX-License-Identifier: Apache-2.0
"""A training step of DGL, for benchmarks/graphs.py and graph_memory.py.

Run in the environment of the peers, with the folder `support` on the path.
"""

import torch
from graph_models import HEADS, TwoLayers, activation_of, step_of
from torch import nn


def dgl_step(model, edges, x, y, hidden, classes):
    """A function that runs forward and backward of two layers and gives the loss."""
    import dgl
    import dgl.nn

    graph = dgl.graph((edges[0], edges[1]), num_nodes=x.shape[0])
    if model in ("gcn", "gat"):
        graph = dgl.add_self_loop(dgl.remove_self_loop(graph))
    graph = graph.formats(["csr", "csc", "coo"])
    graph.create_formats_()

    def mlp(a, b):
        return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))

    a, torch_seed = x.shape[1], 0
    torch.manual_seed(torch_seed)
    pairs = {
        "gcn": lambda: (dgl.nn.GraphConv(a, hidden), dgl.nn.GraphConv(hidden, classes)),
        "sage": lambda: (
            dgl.nn.SAGEConv(a, hidden, "mean"),
            dgl.nn.SAGEConv(hidden, classes, "mean"),
        ),
        "gin": lambda: (dgl.nn.GINConv(mlp(a, hidden)), dgl.nn.GINConv(mlp(hidden, classes))),
        "gat": lambda: (
            dgl.nn.GATConv(a, hidden // HEADS, HEADS),
            dgl.nn.GATConv(hidden, classes, HEADS),
        ),
    }
    first, second = pairs[model]()

    class Flat(nn.Module):
        def __init__(self, conv, is_last):
            super().__init__()
            self.conv, self.is_last = conv, is_last

        def forward(self, x, graph):
            y = self.conv(graph, x)
            return y if y.ndim == 2 else (y.mean(1) if self.is_last else y.flatten(1))

    network = TwoLayers(Flat(first, False), Flat(second, True), activation_of(model))
    return step_of(network, x, graph, y)
