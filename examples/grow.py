"""Train a small GPT, make it deeper and wider in the middle, go on: three added lines, marked +."""

import torch
from torch.nn.functional import cross_entropy

import gossamer
from gossamer.zoo import GPT

torch.manual_seed(0)
text = ("the small model learns first, then it grows and goes on learning. " * 40).encode()
ids = torch.tensor(list(text))
model = GPT(256, width=32, num_heads=2, num_layers=1, context=32)
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)


def batch():
    starts = torch.randint(len(ids) - 33, (16, 1))
    return ids[starts + torch.arange(33)]


def loss_of(net, windows):
    return cross_entropy(net(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


for step in range(60):
    if step == 40:
        larger = gossamer.grow(model, optimizer, width=2, layers=3)  # +
        print(gossamer.verify_growth(model, larger, batch(), loss=loss_of))  # + optional
        model = larger  # +
    optimizer.zero_grad()
    loss = loss_of(model, batch())
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        count = sum(param.numel() for param in model.parameters())
        print(f"step {step + 1}: {count:,} parameters, loss {float(loss.detach()):.3f}")
