"""Prune a model, go on training it with compact state, save it, load it, run it fast."""

import tempfile
from pathlib import Path

import torch
from torch import nn

import gossamer

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
)
teacher = nn.Sequential(nn.Linear(256, 10))
x = torch.randn(512, 256)
labels = teacher(x).argmax(-1)


def accuracy(net):
    with torch.no_grad():
        return float((net(x).argmax(-1) == labels).float().mean())


def train(optimizer, steps):
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
train(optimizer, 20)

print(gossamer.sparsify(model, sparsity=0.9, evaluate=accuracy))  # masks; the layers still train
gossamer.compact(model, optimizer)  # masks fixed: values, gradients and Adam state shrink here
train(optimizer, 20)
print(f"after recovery: {accuracy(model):.3f}")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "pruned"
    gossamer.save(model, path)
    fast = gossamer.compile(gossamer.load(path), tokens=512)

print(gossamer.explain(fast))
print(f"the same answers: {accuracy(fast):.3f}")
