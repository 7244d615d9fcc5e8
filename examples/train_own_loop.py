"""Your own training loop with a sparsity schedule: three added lines, marked +."""

import torch
from torch import nn

import gossamer

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
model.append(nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
x = torch.randn(1024, 128)
labels = (x[:, :10] + 0.5 * x[:, 10:20]).argmax(-1)
steps = 120


def held_bytes():
    tensors = [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None)]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


control = gossamer.attach(  # +
    model, {"kind": "gradual", "sparsity": 0.9, "end": 0.6}, optimizer, total_steps=steps
)
compacted = False
for step in range(steps):
    batch = torch.randint(len(x), (64,))
    loss = nn.functional.cross_entropy(model(x[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for event in control.step():  # +
        if event.kind == "mask" and step % 10 == 0:
            print(f"step {event.step}: {event.sparsity:.1%} zeros, loss {float(loss.detach()):.3f}")
    if control.is_settled and not compacted:
        before = held_bytes()
        gossamer.compact(model, optimizer)  # + masks are final: values, gradients, moments shrink
        compacted = True
        print(f"step {step + 1}: {before:,} bytes of training state become {held_bytes():,}")

accuracy = float((model(x).argmax(-1) == labels).float().mean())
print(f"{control.sparsity():.1%} zeros, accuracy on the training data {accuracy:.3f}")
