# SPDX-License-Identifier: Apache-2.0
"""Accuracy of GCN and GAT on Cora, public split, over several seeds (published: 81.5 and 83.0).

    python benchmarks/graph_accuracy.py [--models gcn,gat] [--sides gossamer,pyg] [--seeds 10]
                                        [--epochs 200] [--stop best|patience] [--json]

Settings of the papers: GCN with 16 hidden features and dropout 0.5, GAT with 8 heads of 8 and
dropout 0.6 of features and attention. The epoch that counts is chosen on validation: `best` takes
the best of some epochs, `patience` is the rule of GAT's paper. Without it, that of each paper is
taken. `--sides pyg` trains the layers of PyG by the same rules. Dropout of words is drawn for those
that are there, as a word that is not stays away; PyG gets them as a dense matrix. Needs
GOSSAMER_DATA.
"""

import argparse
import itertools
import json
import statistics

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from gossamer.graph import GAT, GCN, Graph
from gossamer.settings import data_dir
from support.graph_data import cora

PUBLISHED = {"gcn": 81.5, "gat": 83.0}


def kinds_of(side):
    """Layers of one side: GCN, GAT."""
    if side == "gossamer":
        return GCN, GAT
    from torch_geometric.nn import GATConv, GCNConv

    return GCNConv, GATConv


class Net(nn.Module):
    """Two layers with dropout before each."""

    def __init__(self, model, inputs, classes, side):
        super().__init__()
        gcn, gat = kinds_of(side)
        self.side = side
        if model == "gcn":
            self.layers, self.dropout = nn.ModuleList([gcn(inputs, 16), gcn(16, classes)]), 0.5
            self.between, self.rate = F.relu, 0.01
        else:
            heads = [gat(inputs, 8, 8, dropout=0.6), gat(64, classes, 1, dropout=0.6)]
            self.layers, self.dropout = nn.ModuleList(heads), 0.6
            self.between, self.rate = F.elu, 0.005

    def forward(self, words, graph):
        """Logits of all nodes."""
        x = self.layers[0](self._dropped(words), graph)
        x = F.dropout(self.between(x), self.dropout, self.training)
        return self.layers[1](x, graph)

    def _dropped(self, words):
        if self.training:
            parts = words.crow_indices(), words.col_indices()
            values = F.dropout(words.values(), self.dropout)
            words = torch.sparse_csr_tensor(*parts, values, words.shape)
        return words.to_dense() if self.side == "pyg" else words


def train(model, side, case, split, graph, seed, epochs, stop):
    torch.manual_seed(seed)
    x, y = torch.from_numpy(case.x).to_sparse_csr(), torch.from_numpy(case.y)
    net = Net(model, x.shape[1], case.num_classes, side)
    groups = [{"params": net.layers[0].parameters(), "weight_decay": 5e-4}]
    decay = 0.0 if model == "gcn" else 5e-4
    groups.append({"params": net.layers[1].parameters(), "weight_decay": decay})
    optimizer = torch.optim.Adam(groups, lr=net.rate)
    watch = STOPS[stop or OWN[model]](epochs)
    while watch.goes_on:
        net.train()
        optimizer.zero_grad()
        F.cross_entropy(net(x, graph)[split["train"]], y[split["train"]]).backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            logits = net(x, graph)
        right = (logits.argmax(1) == y).float()
        lost = float(F.cross_entropy(logits[split["val"]], y[split["val"]]))
        watch.look(float(right[split["val"]].mean()), lost, float(right[split["test"]].mean()))
    return 100 * watch.test


class BestEpoch:
    """A number of epochs; that of the best validation accuracy, then of the lowest loss, counts."""

    def __init__(self, epochs):
        self.left, self.best, self.test = epochs, (-1.0, 0.0), 0.0

    @property
    def goes_on(self):
        """Whether another epoch follows."""
        return self.left > 0

    def look(self, accuracy, loss, test):
        """Take note of an epoch: accuracy and loss on validation, accuracy on the test."""
        self.left -= 1
        # Epochs of equal accuracy are told apart by their validation loss, never by the test.
        if (accuracy, -loss) > self.best:
            self.best, self.test = (accuracy, -loss), test


class Patience:
    """GAT's rule: stop when neither number got better for 100 epochs; where both did, counts."""

    def __init__(self, epochs, patience=100):
        self.left, self.patience, self.waited = 50 * epochs, patience, 0
        self.accuracy, self.loss, self.test = 0.0, float("inf"), 0.0

    @property
    def goes_on(self):
        """Whether another epoch follows."""
        return self.left > 0 and self.waited < self.patience

    def look(self, accuracy, loss, test):
        """Take note of an epoch: accuracy and loss on validation, accuracy on the test."""
        self.left -= 1
        better = accuracy >= self.accuracy, loss <= self.loss
        self.waited = 0 if any(better) else self.waited + 1
        if all(better):
            self.test = test
        self.accuracy, self.loss = max(self.accuracy, accuracy), min(self.loss, loss)


STOPS = {"best": BestEpoch, "patience": Patience}
OWN = {"gcn": "best", "gat": "patience"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="gcn,gat")
    parser.add_argument("--sides", default="gossamer")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--stop", choices=STOPS, default=None)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    case = cora()
    arrays = np.load(data_dir() / "planetoid" / "cora.npz")
    split = {n: torch.from_numpy(arrays[n].astype(np.int64)) for n in ("train", "val", "test")}
    edges = torch.from_numpy(case.edges)
    graphs = {"gossamer": Graph.of(edges, num_nodes=len(case.y)), "pyg": edges}
    for model, side in itertools.product(args.models.split(","), args.sides.split(",")):
        found = [
            train(model, side, case, split, graphs[side], s, args.epochs, args.stop)
            for s in range(args.seeds)
        ]
        spread = statistics.stdev(found) if len(found) > 1 else 0.0
        mean = statistics.mean(found)
        if args.json:
            row = {"model": model, "side": side, "accuracy": found}
            print(json.dumps({**row, "published": PUBLISHED[model]}))
        else:
            seeds = f"{len(found)} seeds (published {PUBLISHED[model]})"
            print(f"{model}, {side}: {mean:.2f} +- {spread:.2f} over {seeds}", flush=True)


if __name__ == "__main__":
    main()
