# SPDX-License-Identifier: Apache-2.0
"""Node classification on a generated graph: two groups of nodes that mostly know each other."""

import torch
import torch.nn.functional as F

from gossamer.graph import GCN, Graph, explain


def make(num_nodes=600, num_edges=4000, seed=0):
    """Edges that stay within a group nine times of ten, weak features, and the groups."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (num_nodes,), generator=generator)
    sources, targets = torch.randint(0, num_nodes, (2, 4 * num_edges), generator=generator)
    lottery = torch.rand(4 * num_edges, generator=generator)
    kept = (y[sources] == y[targets]) | (lottery < 0.1)
    edges = torch.stack([sources, targets])[:, kept][:, :num_edges]
    x = torch.randn(num_nodes, 16, generator=generator)
    x[:, 0] += 0.5 * (2 * y - 1)
    return Graph.of(edges, num_nodes=num_nodes), x, y


class Net(torch.nn.Module):
    """Two convolutions."""

    def __init__(self):
        super().__init__()
        self.first, self.second = GCN(16, 32), GCN(32, 2)

    def forward(self, x, graph):
        return self.second(F.relu(self.first(x, graph)), graph)


def main():
    graph, x, y = make()
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen = torch.arange(len(y)) < 60  # labels of a tenth of the nodes
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(model(x, graph)[seen], y[seen]).backward()
        optimizer.step()
    right = (model(x, graph).argmax(1) == y)[~seen].float().mean()
    print(graph)
    print(explain(model))
    print(f"{right:.1%} of the other nodes are right")


if __name__ == "__main__":
    main()
