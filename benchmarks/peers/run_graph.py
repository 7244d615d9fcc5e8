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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from dgl_step import dgl_step
from graph_models import step_of, two_layers

warnings.filterwarnings("ignore")
ready = []


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
