# SPDX-License-Identifier: Apache-2.0
"""The same training beside PyG's own: GCN on MUSAE's facebook pages, LightGCN on Gowalla.

    python benchmarks/graph_peers.py [--cases musae,gowalla] [--seeds 3] [--epochs 100]
                                     [--link-epochs 3] [--batch 16384] [--json]

Both sides begin with the same weights and draw the same samples and dropout; one is a model of PyG,
the other a copy of it after `gossamer.graph.accelerate`. facebook: all 4,714 words, two layers with
16 hidden features, half of the nodes to train on, a quarter to choose the epoch by, a quarter to
report. Gowalla: loss of each epoch with BPR and PyG's penalty; PyG gets its faster form, a sparse
`adj_t`. CPU seconds are of the training steps alone, sides in turn. Needs GOSSAMER_DATA and
torch_geometric.
"""

import argparse
import copy
import json
import statistics
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from gossamer.graph import accelerate
from gossamer.settings import data_dir
from support.graph_data import facebook, gowalla

HIDDEN, WIDTH, HOPS = 16, 64, 3


class Net(nn.Module):
    """Two layers, with dropout between them."""

    def __init__(self, inputs, classes):
        from torch_geometric.nn import GCNConv

        super().__init__()
        self.first, self.second = GCNConv(inputs, HIDDEN), GCNConv(HIDDEN, classes)

    def forward(self, x, edge_index):
        """Logits of all nodes."""
        x = F.dropout(self.first(x, edge_index).relu(), 0.5, self.training)
        return self.second(x, edge_index)


def both_sides(model):
    """PyG's model, and the same one on this package's kernels."""
    own = copy.deepcopy(model)
    accelerate(own)
    return {"pyg": model, "gossamer": own}


def words():
    """All words of the facebook pages as a dense matrix."""
    arrays = np.load(data_dir() / "musae" / "facebook.npz")
    starts, columns = arrays["x_indptr"], arrays["x_indices"]
    x = np.zeros((len(starts) - 1, int(columns.max()) + 1), dtype=np.float32)
    x[np.repeat(np.arange(len(x)), np.diff(starts)), columns] = 1.0
    return torch.from_numpy(x)


def musae(seed, epochs):
    """Test accuracy of the epoch with the lowest validation loss, and CPU seconds, by side."""
    case, x = facebook(), words()
    y, edges = torch.from_numpy(case.y), torch.from_numpy(case.edges)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    train, val, test = order.tensor_split([len(y) // 2, 3 * len(y) // 4])
    torch.manual_seed(seed)
    sides = both_sides(Net(x.shape[1], case.num_classes))
    optimizers = {n: torch.optim.Adam(m.parameters(), lr=0.01) for n, m in sides.items()}
    found = {name: {"lowest": float("inf"), "seconds": 0.0} for name in sides}
    for epoch in range(epochs):
        for name, model in sides.items():
            torch.manual_seed(1000 * seed + epoch)
            began = time.process_time()
            model.train()
            optimizers[name].zero_grad()
            F.cross_entropy(model(x, edges)[train], y[train]).backward()
            optimizers[name].step()
            found[name]["seconds"] += time.process_time() - began
            model.eval()
            with torch.no_grad():
                logits = model(x, edges)
            lost = float(F.cross_entropy(logits[val], y[val]))
            if lost < found[name]["lowest"]:
                right = (logits[test].argmax(1) == y[test]).double().mean()
                found[name] |= {"lowest": lost, "accuracy": 100 * float(right)}
    return found


def links(epochs, batch):
    """Mean loss of each epoch and CPU seconds, by side."""
    from torch_geometric.nn import LightGCN

    case = gowalla()
    users = int((case.y == 0).sum())
    edges = torch.from_numpy(case.edges)
    adj_t = torch.sparse_coo_tensor(
        edges.flip(0), torch.ones(edges.shape[1]), (len(case.y), len(case.y))
    ).to_sparse_csr()
    to_items = edges[1] >= users
    pairs = torch.stack([edges[0][to_items], edges[1][to_items]])
    torch.manual_seed(0)
    sides = both_sides(LightGCN(len(case.y), WIDTH, HOPS))
    graphs = {"pyg": adj_t, "gossamer": edges}
    optimizers = {n: torch.optim.Adam(m.parameters(), lr=0.005) for n, m in sides.items()}
    found = {name: {"losses": [], "seconds": 0.0} for name in sides}
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(pairs.shape[1], generator=generator)
        sums, steps = dict.fromkeys(sides, 0.0), 0
        for part in order.split(batch):
            own, items = pairs[:, part]
            others = torch.randint(users, len(case.y), items.shape, generator=generator)
            steps += 1
            for name, model in sides.items():
                began = time.process_time()
                optimizers[name].zero_grad()
                vectors = model.get_embedding(graphs[name])
                scores = [(vectors[own] * vectors[of]).sum(1) for of in (items, others)]
                nodes = torch.cat([own, items, others]).unique()
                loss = model.recommendation_loss(*scores, node_id=nodes, lambda_reg=1e-4)
                loss.backward()
                optimizers[name].step()
                found[name]["seconds"] += time.process_time() - began
                sums[name] += loss.item()
        for name, total in sums.items():
            found[name]["losses"].append(total / steps)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="musae,gowalla")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--link-epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16384)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for case in args.cases.split(","):
        if case == "musae":
            runs = [musae(seed, args.epochs) for seed in range(args.seeds)]
            for name in ("pyg", "gossamer"):
                accuracy = [run[name]["accuracy"] for run in runs]
                seconds = sum(run[name]["seconds"] for run in runs)
                show(args, case, name, {"accuracy": accuracy, "seconds": seconds})
                print(f"  mean {statistics.mean(accuracy):.2f}", flush=True)
        else:
            for name, found in links(args.link_epochs, args.batch).items():
                show(args, case, name, found)


def show(args, case, name, found):
    if args.json:
        print(json.dumps({"case": case, "side": name, **found}), flush=True)
        return
    texts = []
    for key, value in found.items():
        numbers = value if isinstance(value, list) else [value]
        texts.append(f"{key} {', '.join(f'{number:.6f}' for number in numbers)}")
    print(f"{case} {name}: {'; '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
