# SPDX-License-Identifier: Apache-2.0
"""Training steps of PyG (edge_index, or CSR adj_t) and of DGL.

{"load": {"case": "c.npz", "engine": "pyg-csr", "model": "gcn", "hidden": 64, "threads": 1}}
    -> {"loss": 1.23}
{"turn": null} -> {"seconds": 0.12}
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from answer import answer
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from graph_models import HEADS, step_of, two_layers

warnings.filterwarnings("ignore")
ready = []


def dgl_step(model, edges, x, y, hidden, classes):
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
    layers = nn.ModuleList(pairs[model]())

    class Flat(nn.Module):
        def __init__(self, conv, is_last):
            super().__init__()
            self.conv, self.is_last = conv, is_last

        def forward(self, x, graph):
            y = self.conv(graph, x)
            return y if y.ndim == 2 else (y.mean(1) if self.is_last else y.flatten(1))

    wrapped = nn.ModuleList([Flat(layers[0], False), Flat(layers[1], True)])
    return step_of(wrapped, x, graph, y)


def load(case):
    torch.set_num_threads(case["threads"])
    arrays = np.load(case["case"])
    edges, x, y = (torch.from_numpy(arrays[name]) for name in ("edges", "x", "y"))
    classes = int(y.max()) + 1
    if case["engine"] == "dgl":
        step = dgl_step(case["model"], edges, x, y, case["hidden"], classes)
    else:
        layers = two_layers(case["model"], x.shape[1], case["hidden"], classes)
        graph = edges
        if case["engine"] == "pyg-csr":
            from torch_geometric.utils import to_torch_csr_tensor

            graph = to_torch_csr_tensor(edges.flip(0), size=(x.shape[0], x.shape[0]))
        step = step_of(layers, x, graph, y)
    loss = float(step())
    clock = time.process_time if case["threads"] == 1 else time.perf_counter
    ready[:] = step, clock
    return {"loss": loss}


def turn(_):
    step, clock = ready
    start = clock()
    step()
    return {"seconds": clock() - start}


answer({"load": load, "turn": turn})
