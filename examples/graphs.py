"""Train a model on a graph like Cora, prune it, run it, and compare it with the best guess.

Papers of seven fields cite each other, mostly within a field, and words say a little about it.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

import gossamer
from gossamer.graph import Graph, explain
from gossamer.zoo.problems.graphs import partition_problem

papers = partition_problem(
    torch.Generator().manual_seed(0),
    num_nodes=1400,
    num_classes=7,
    inside=0.01,
    between=0.001,
    signal=1.5,
)
numbers = torch.randperm(1400, generator=torch.Generator().manual_seed(1))
parts = dict(zip(("train", "val", "test"), numbers.split([400, 500, 500]), strict=True))

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    arrays = {"edges": papers.edges.T, "x": papers.x, "y": papers.y, **parts}
    np.savez(folder / "papers.npz", **{key: value.numpy() for key, value in arrays.items()})
    result = gossamer.train(
        "train-graph", folder / "papers.npz", out=folder / "model", overrides=["steps=100"]
    )
    for figure, value in result.quality.items():
        print(f"{figure:24} {value:.4f}")
    model = gossamer.load(result.path).eval()

best = papers.best_guess() == papers.y
alone = papers.x.argmax(1) == papers.y
print(f"{'by features alone':24} {alone[parts['test']].float().mean():.4f}")
print(f"{'if all others are known':24} {best[parts['test']].float().mean():.4f}")

# The linear layers inside are layers like any other.
graph = Graph.of(torch.cat([papers.edges, papers.edges.flip(0)], dim=1), num_nodes=1400)
gossamer.sparsify(model, sparsity=0.5)
fast = gossamer.compile(model, tokens=1400, example=(papers.x, graph))
with torch.inference_mode():
    right = fast(papers.x, graph).argmax(1) == papers.y
print(f"{'half of the weights':24} {right[parts['test']].float().mean():.4f}")
print(explain(fast))
print(gossamer.explain(fast))
